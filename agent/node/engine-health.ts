/**
 * Whether a wrapped engine that lives also works. Two ways in which it may not: its server answers no more, or it
 * answers and nothing is computed. Both are counted in looks of the agent's own timer, so that a job that was
 * suspended as a whole, or a clock that jumps, is no hang.
 */

/**
 * Looks that must fail in a row. Lower: hangs are found sooner; higher: a server that is busy for a while is let be.
 */
const failures_max = 3;

export interface HealthBounds {
  /**
   * Until an engine that does not answer is taken for hung: three looks in a row, each waited for twice as long as
   * the pause before it. Lower: requests fail over sooner; higher: tolerates servers that are held up by long requests.
   */
  health_s: number;
  /**
   * Until an engine that computes nothing, although requests run, is. Lower: sooner; higher: tolerates long prefills.
   */
  stall_s: number;
}

/** What was seen of an engine since the look before. */
export interface HealthLook {
  /** Why it did not answer as it should; absent where it did. */
  failure?: string;
  /** Requests that it has not answered to their end. */
  in_flight: number;
  /** Of these, streams that have begun. */
  streams: number;
  /** Bytes that came of its answers, since ever. */
  answer_bytes: number;
  /** A number of its own that changes while it computes; absent where it has none. */
  activity?: number;
}

export class EngineHealth {
  readonly interval_ms: number;
  readonly timeout_ms: number;
  readonly #stall_looks: number;
  #failures = 0;
  #still = 0;
  #before: HealthLook | undefined;

  constructor({ health_s, stall_s }: HealthBounds) {
    this.interval_ms = (health_s * 1000) / (3 * failures_max);
    this.timeout_ms = 2 * this.interval_ms;
    this.#stall_looks = Math.max(2, Math.ceil((stall_s * 1000) / this.interval_ms));
  }

  /** Why the engine counts as hung now; undefined where it does not. */
  look(look: HealthLook): string | undefined {
    const before = this.#before;
    this.#before = look;
    this.#failures = look.failure === undefined ? 0 : this.#failures + 1;
    if (this.#failures >= failures_max)
      return `${this.#failures} health checks failed in a row: ${look.failure}`;
    this.#still = before && stands(before, look) ? this.#still + 1 : 0;
    if (this.#still < this.#stall_looks) return undefined;
    const still_s = Math.round((this.#still * this.interval_ms) / 1000);
    return `it answers health checks, and has computed nothing for ${still_s} s while ${look.in_flight} request(s) run`;
  }
}

/**
 * Whether requests run and nothing came of them. Of a request that is not streamed only the engine's own count tells.
 */
function stands(before: HealthLook, now: HealthLook): boolean {
  if (now.in_flight === 0 || before.in_flight === 0) return false;
  if (now.answer_bytes !== before.answer_bytes) return false;
  if (now.activity !== undefined) return now.activity === before.activity;
  return now.streams === now.in_flight;
}
