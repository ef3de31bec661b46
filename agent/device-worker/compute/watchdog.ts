/** What the compute thread tells of itself in shared memory, which it need not wait for anybody to write. */
export const pulse = {
  /** Counted up by the main thread with every message: wakes the compute thread. */
  signal: 0,
  /** Counted up by the compute thread with everything that it begins or comes on with. */
  beats: 1,
  /** `idle` while it waits for messages. */
  state: 2,
  words: 3,
} as const;

export const pulseStates = { idle: 0, computing: 1, loading: 2 } as const;

/**
 * A look at the compute thread every so often. Ticks of its own timer, so that a process that was stopped is no hang.
 */
export const watch_ms = 1000;
/** The longest iteration so far may be outdone so many times. Lower: found sooner; higher: tolerates uneven work. */
const longest_factor = 20;

/**
 * Finds a compute thread that is stuck, in a driver or a library, while the rest of the worker lives: it has begun
 * something and does not come to its end. How long an iteration may take depends on model and device, so what was
 * seen counts too:
 *
 *     limit = max(stall_ms, 20 × the longest iteration so far); 2 × stall_ms for one piece of a model's weights
 *
 * `stall_ms` lower: found sooner; higher: tolerates slower devices and filesystems.
 */
export class ComputeWatchdog {
  readonly #stall_ticks: number;
  #beats = -1;
  #still = 0;
  #longest = 0;
  /** Whether the thread was loading when it was last seen standing. */
  #loading = false;

  constructor(stall_ms: number) {
    this.#stall_ticks = stall_ms / watch_ms;
  }

  /** @returns for how long the thread has been stuck, s; undefined where it is not */
  tick(beats: number, state: number): number | undefined {
    if (state === pulseStates.idle || beats !== this.#beats) {
      if (!this.#loading) this.#longest = Math.max(this.#longest, this.#still);
      this.#still = 0;
      this.#beats = beats;
      return undefined;
    }
    this.#still++;
    this.#loading = state === pulseStates.loading;
    const limit = this.#loading
      ? 2 * this.#stall_ticks
      : Math.max(this.#stall_ticks, longest_factor * this.#longest);
    return this.#still > limit ? Math.round((this.#still * watch_ms) / 1000) : undefined;
  }
}
