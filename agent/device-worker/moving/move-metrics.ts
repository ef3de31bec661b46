import { Counter, Gauge, type Registry } from 'prom-client';
import { keptReasons, type MovesReport } from '../../../spec/moves-report.ts';

/** What moved with its keys and values, for Prometheus: the numbers of a `MovesReport`. */
export class MoveMetrics {
  readonly #answers: Counter<'outcome'>;
  readonly #continued_tokens: Counter;
  readonly #bytes: Counter<'way'>;
  readonly #fallbacks: Counter;
  readonly #rate: Gauge<'peer' | 'node' | 'way'>;
  readonly #handovers: Counter<'outcome'>;
  readonly #handover_tokens: Counter<'sent'>;
  readonly #handover_pause: Gauge;
  #last: MovesReport = { moved: 0, recomputed: 0, continued: 0, continued_tokens: 0, missed: 0, peers: [] };

  constructor(registry: Registry) {
    const registers = [registry];
    this.#answers = new Counter({
      name: 'hpcserve_kv_moved_answers_total',
      help: 'Answers that left with their KV (moved) or without (recomputed), or were continued here with KV that had come (continued) or had not (missed).',
      labelNames: ['outcome'],
      registers,
    });
    this.#continued_tokens = new Counter({
      name: 'hpcserve_kv_continued_tokens_total',
      help: 'Tokens of answers from elsewhere that were not computed again, since their KV had come.',
      registers,
    });
    this.#bytes = new Counter({
      name: 'hpcserve_kv_sent_bytes_total',
      help: 'KV that was sent to other workers, by the way it went last.',
      labelNames: ['way'],
      registers,
    });
    this.#fallbacks = new Counter({
      name: 'hpcserve_kv_fallbacks_total',
      help: 'Ways for KV that were announced and did not work.',
      registers,
    });
    this.#rate = new Gauge({
      name: 'hpcserve_kv_send_rate_bytes_per_second',
      help: 'Of transfers to a peer, on average.',
      labelNames: ['peer', 'node', 'way'],
      registers,
    });
    this.#handovers = new Counter({
      name: 'hpcserve_kv_handovers_total',
      help: 'Answers whose prompts a replica of a prefill pool computed: handed over to the decode pool (handed_over), or decoded here, by why.',
      labelNames: ['outcome'],
      registers,
    });
    this.#handover_tokens = new Counter({
      name: 'hpcserve_kv_handover_tokens_total',
      help: 'Prompt tokens of answers that were handed over (all), and those whose KV was sent while the prompt was computed (early).',
      labelNames: ['sent'],
      registers,
    });
    this.#handover_pause = new Gauge({
      name: 'hpcserve_kv_handover_pause_seconds',
      help: 'From where an answer stops here until its KV is at the decode pool, on average.',
      registers,
    });
  }

  /** @param report newer than the one before */
  set(report: MovesReport): void {
    const last = this.#last;
    for (const outcome of ['moved', 'recomputed', 'continued', 'missed'] as const)
      this.#answers.inc({ outcome }, report[outcome] - last[outcome]);
    this.#continued_tokens.inc(report.continued_tokens - last.continued_tokens);
    this.#rate.reset();
    for (const { peer, node, way = 'none', bytes, busy_ms, fallbacks } of report.peers) {
      const before = last.peers.find((known) => known.peer === peer);
      this.#bytes.inc({ way }, bytes - (before?.bytes ?? 0));
      this.#fallbacks.inc(fallbacks - (before?.fallbacks ?? 0));
      if (busy_ms > 0) this.#rate.set({ peer, node, way }, (1000 * bytes) / busy_ms);
    }
    this.#setHandovers(report.handovers, last.handovers);
    this.#last = report;
  }

  #setHandovers(now: MovesReport['handovers'], last: MovesReport['handovers']): void {
    if (!now) return;
    this.#handovers.inc({ outcome: 'handed_over' }, now.handed_over - (last?.handed_over ?? 0));
    for (const reason of keptReasons)
      this.#handovers.inc({ outcome: reason }, now.kept[reason] - (last?.kept[reason] ?? 0));
    this.#handover_tokens.inc({ sent: 'all' }, now.tokens - (last?.tokens ?? 0));
    this.#handover_tokens.inc({ sent: 'early' }, now.early_tokens - (last?.early_tokens ?? 0));
    this.#handover_pause.set(now.pause_ms / 1000);
  }
}
