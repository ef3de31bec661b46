/**
 * When a device worker or engine that had been serving is started again: at most `most` times within `window_ms`,
 * after pauses that grow fourfold. Lower `most`: a broken node is given up sooner; higher: rare crashes are ridden out.
 */
export class RestartPolicy {
  readonly #ends_ms: number[] = [];
  readonly #most: number;
  readonly #window_ms: number;
  readonly #first_pause_ms: number;

  constructor({ most = 3, window_ms = 600_000, first_pause_ms = 1000 } = {}) {
    this.#most = most;
    this.#window_ms = window_ms;
    this.#first_pause_ms = first_pause_ms;
  }

  /** Pause before the next start, ms; undefined: do not start again. */
  next(now_ms: number): number | undefined {
    while (this.#ends_ms.length > 0 && now_ms - this.#ends_ms[0]! > this.#window_ms) this.#ends_ms.shift();
    if (this.#ends_ms.length >= this.#most) return undefined;
    this.#ends_ms.push(now_ms);
    return this.#first_pause_ms * 4 ** (this.#ends_ms.length - 1);
  }
}
