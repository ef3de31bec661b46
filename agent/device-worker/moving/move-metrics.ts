import { Counter, Gauge, type Registry } from 'prom-client';
import type { MovesReport } from '../../../spec/moves-report.ts';

/** What moved with its keys and values, for Prometheus: the numbers of a `MovesReport`. */
export class MoveMetrics {
  readonly #answers: Counter<'outcome'>;
  readonly #continued_tokens: Counter;
  readonly #bytes: Counter<'way'>;
  readonly #fallbacks: Counter;
  readonly #rate: Gauge<'peer' | 'node' | 'way'>;
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
    this.#last = report;
  }
}
