/** One load under way: looked after by the thread that began it, between other things that it does. */
import type { LoadProgress } from '../../../spec/engine-contract.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import { LoadCounters, type LoadWork } from './load-work.ts';
import type { ModelSource } from './model-source.ts';

/** A unit takes milliseconds, seconds from a slow disk: after this long without a byte, the file hangs. */
const stall_ms = 60_000;
/** How long a caller that helps waits for others once no unit is left to take. */
const wait_ms = 2;

export class TensorLoading {
  readonly #source: ModelSource;
  readonly #work: LoadWork;
  readonly #share: { step(): boolean; end(): void };
  readonly #counters: LoadCounters;
  readonly #onProgress: (progress: LoadProgress) => void;
  readonly #bytes_total: number;
  readonly #started = performance.now();
  #bytes = -1;
  #moved_at = performance.now();

  constructor(
    source: ModelSource,
    work: LoadWork,
    share: { step(): boolean; end(): void },
    onProgress: (progress: LoadProgress) => void,
  ) {
    this.#source = source;
    this.#work = work;
    this.#share = share;
    this.#onProgress = onProgress;
    this.#counters = new LoadCounters(work.counters);
    this.#bytes_total = work.units.reduce(
      (sum, unit) => unit.reduce((part, { bytes }) => part + bytes, sum),
      0,
    );
  }

  /**
   * @param help takes one unit, and waits a little where none is left to take
   * @returns whether every byte is in its place
   * @throws HpcserveError E_POOL_LOAD: the file cannot be read, is shorter than it was, or has changed; then the
   *   places of the tensors hold nothing of use, and no thread writes to them any more unless
   *   `details.still_writing` is true
   */
  advance(help: boolean): boolean {
    const counters = this.#counters;
    const { units, path } = this.#work;
    if (help && !this.#share.step() && counters.active > 0) counters.wait(counters.active, wait_ms);
    this.#report();
    if (counters.left(units.length) || counters.active > 0) {
      if (performance.now() - this.#moved_at <= stall_ms) return false;
      this.#giveUp();
      throw new HpcserveError('E_POOL_LOAD', {
        what: `${path} is not read on`,
        because: `no byte came in ${stall_ms / 1000} s: its disk or filesystem hangs`,
        details: { still_writing: counters.active > 0 },
      });
    }
    // Threads may have ended since.
    this.#report();
    this.#share.end();
    try {
      const failure = counters.failure;
      if (failure) throw new HpcserveError('E_POOL_LOAD', { ...failure });
      this.#source.check();
      return true;
    } finally {
      this.#source.close();
    }
  }

  /** @returns whether all threads have let go of it: if not, they may still write to the places of the tensors */
  cancel(): boolean {
    this.#giveUp();
    return this.#counters.active === 0;
  }

  #giveUp(): void {
    this.#counters.stop();
    const until = performance.now() + 1000;
    while (this.#counters.active > 0 && performance.now() < until)
      this.#counters.wait(this.#counters.active, wait_ms);
    this.#share.end();
    // A thread that hangs in a read still has the file in its hands.
    if (this.#counters.active === 0) this.#source.close();
  }

  #report(): void {
    const bytes_loaded = this.#counters.bytes;
    if (bytes_loaded === this.#bytes) return;
    this.#bytes = bytes_loaded;
    this.#moved_at = performance.now();
    this.#onProgress({
      bytes_loaded,
      bytes_total: this.#bytes_total,
      elapsed_ms: this.#moved_at - this.#started,
    });
  }
}
