import { StallMonitor } from '../../solver/granularity/stall-monitor.ts';
import type { MeasuredDemand } from '../../spec/demand.ts';

/** What one gateway says of a model. */
export interface GatewayAnswers {
  gateway: number;
  /** When the gateway began to count, Unix ms. */
  started_ms: number;
  answers: NonNullable<MeasuredDemand['answers']>;
}

/** An interval in which answers took longer than is normal. */
export interface AnswerStall {
  began_ms: number;
  /** P25 of what a pass took before, ms. */
  baseline_ms: number;
  /** Absent: it lasts. */
  recovered_ms?: number;
}

/**
 * Stalls of a model's answers (FlexPipe §9.3), from what gateways tell of the last ones: each is looked at once, in the
 * order in which they ended. What a gateway does not tell any more when it is looked at is missed.
 */
export class AnswerStalls {
  readonly #monitor = new StallMonitor();
  /** By gateway: answers that were looked at. */
  readonly #seen = new Map<number, { started_ms: number; total: number }>();
  #now: AnswerStall | undefined;

  /** The stall that lasts. */
  get now(): AnswerStall | undefined {
    return this.#now;
  }

  /** The pipeline is another one: what was normal is forgotten. */
  reset(): void {
    this.#monitor.reset();
    this.#now = undefined;
  }

  /** @returns the stall that was there at the last look and is over, if it is */
  observe(gateways: readonly GatewayAnswers[]): AnswerStall | undefined {
    const before = this.#now;
    let ended: AnswerStall | undefined;
    for (const [ended_ms, pass_ms] of this.#unseen(gateways)) {
      const { baseline_ms } = this.#monitor;
      const stall = this.#monitor.observe(ended_ms, pass_ms);
      if (stall && stall.began_ms === before?.began_ms) ended = { ...stall, baseline_ms: baseline_ms! };
    }
    const { stall, baseline_ms } = this.#monitor;
    this.#now = stall && { began_ms: stall.began_ms, baseline_ms: baseline_ms! };
    return ended;
  }

  #unseen(gateways: readonly GatewayAnswers[]): [number, number][] {
    const all = gateways.flatMap(({ gateway, started_ms, answers: { total, last } }) => {
      const seen = this.#seen.get(gateway);
      const before = seen?.started_ms === started_ms ? seen.total : 0;
      this.#seen.set(gateway, { started_ms, total });
      const news = Math.min(last.length, Math.max(0, total - before));
      return last.slice(last.length - news);
    });
    return all.sort(([a], [b]) => a - b);
  }
}
