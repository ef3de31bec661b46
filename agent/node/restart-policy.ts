export interface RestartPace {
  /** Lower: a broken node is given up sooner; higher: rare crashes are ridden out. */
  most: number;
  /** Starts of longer ago are forgiven. */
  window_ms: number;
  first_pause_ms: number;
  longest_pause_ms: number;
}

/** Of what had been serving. */
const at_once: RestartPace = {
  most: 3,
  window_ms: 600_000,
  first_pause_ms: 1000,
  longest_pause_ms: 60_000,
};

/** When a device worker, an engine or a model is started again: after pauses that grow fourfold. */
export class RestartPolicy {
  readonly #pace: RestartPace;
  #ends_ms: number[] = [];

  constructor(pace: Partial<RestartPace> = {}) {
    this.#pace = { ...at_once, ...pace };
  }

  /** Pause before the next start, ms; undefined: do not start again. */
  next(now_ms: number): number | undefined {
    const { most, window_ms, first_pause_ms, longest_pause_ms } = this.#pace;
    this.#ends_ms = this.#ends_ms.filter((end_ms) => now_ms - end_ms <= window_ms);
    if (this.#ends_ms.length >= most) return undefined;
    this.#ends_ms.push(now_ms);
    return Math.min(longest_pause_ms, first_pause_ms * 4 ** (this.#ends_ms.length - 1));
  }
}

/**
 * Of what was given up while others of its job live: what was wrong with a filesystem, or with the memory of a device
 * that it shares, may be over, and the job has hours to go.
 */
export function pausesBesideOthers({ HPCSERVE_RETRY_S = '60' }: NodeJS.ProcessEnv): RestartPolicy {
  return new RestartPolicy({
    most: Number.POSITIVE_INFINITY,
    window_ms: 4 * 3_600_000,
    first_pause_ms: 1000 * Number(HPCSERVE_RETRY_S),
    longest_pause_ms: 3_600_000,
  });
}
