/** Stalls and recoveries of a model's answers, by FlexPipe §9.3. */

export interface Stall {
  began_ms: number;
  /** Absent: it lasts. */
  recovered_ms?: number;
}

/** A stall begins above this multiple of the baseline. */
const stall_factor = 1.5;
/** It is over within this one: lower than the other, so that latencies on the border do not flicker. */
const recovered_factor = 1.2;

/** Answers whose P25 is the baseline. More: steadier; fewer: follows a changed pipeline sooner. */
const baseline_answers = 256;
/** Answers before anything is judged. */
const answers_min = 32;
/** Answers after which the P25 is worked out anew. */
const refreshed_every = 32;

/**
 * Watches the latencies of answers as they end. The baseline is the P25 of those under normal operation; answers of a
 * stall do not enter it. Where as many answers in a row stall as it is taken from, nothing of it says that they will
 * not go on so: they are what is normal from then on, and the stall is over without a recovery.
 */
export class StallMonitor {
  readonly #normal_ms: number[] = [];
  #next = 0;
  #unseen = 0;
  #baseline_ms: number | undefined;
  #stall: Stall | undefined;
  /** Of the stall that lasts. */
  readonly #stalled_ms: number[] = [];

  get baseline_ms(): number | undefined {
    return this.#baseline_ms;
  }

  get stall(): Stall | undefined {
    return this.#stall;
  }

  /** A pipeline with other latencies serves from now on: what was normal is forgotten. */
  reset(): void {
    this.#normal_ms.length = 0;
    this.#next = 0;
    this.#unseen = 0;
    this.#baseline_ms = undefined;
    this.#end();
  }

  /** @returns the stall that ends with this answer */
  observe(at_ms: number, latency_ms: number): Stall | undefined {
    const baseline_ms = this.#baseline_ms;
    if (baseline_ms === undefined) {
      this.#learn(latency_ms);
      return undefined;
    }
    if (this.#stall !== undefined) {
      if (latency_ms > recovered_factor * baseline_ms) {
        this.#last(latency_ms);
        return undefined;
      }
      const ended = { ...this.#stall, recovered_ms: at_ms };
      this.#end();
      return ended;
    }
    if (latency_ms > stall_factor * baseline_ms) {
      this.#stall = { began_ms: at_ms };
      this.#last(latency_ms);
    } else this.#learn(latency_ms);
    return undefined;
  }

  #end(): void {
    this.#stall = undefined;
    this.#stalled_ms.length = 0;
  }

  /** One more of the stall that lasts. */
  #last(latency_ms: number): void {
    this.#stalled_ms.push(latency_ms);
    if (this.#stalled_ms.length < baseline_answers) return;
    const normal_ms = [...this.#stalled_ms];
    this.reset();
    for (const each of normal_ms) this.#learn(each);
  }

  #learn(latency_ms: number): void {
    this.#normal_ms[this.#next] = latency_ms;
    this.#next = (this.#next + 1) % baseline_answers;
    this.#unseen++;
    if (this.#normal_ms.length < answers_min || this.#unseen < refreshed_every) return;
    this.#unseen = 0;
    const sorted = [...this.#normal_ms].sort((a, b) => a - b);
    this.#baseline_ms = sorted[Math.floor(sorted.length / 4)]!;
  }
}
