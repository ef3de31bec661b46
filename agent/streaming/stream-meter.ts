import {
  type LinkEstimate,
  newLinkEstimate,
  observeTransfer,
  whySlow,
} from '../../solver/streaming/link-estimate.ts';
import type { TensorLoading } from '../memory/load/tensor-loading.ts';

/** Loads of fewer bytes say more of what it takes to begin one than of the link. */
const observed_bytes_min = 2 ** 20;

/** What streaming did so far. */
export interface StreamStatistics {
  streamed_bytes: number;
  /** Time for which the computation waited for bytes. */
  waited_ms: number;
  link: LinkEstimate | undefined;
  /** Why it is slower than it was at first. */
  slow: string | undefined;
}

/** Counts what is brought for a model, and how fast. */
export class StreamMeter {
  readonly #copy_threads: number;
  #streamed_bytes = 0;
  #waited_ms = 0;
  #link: LinkEstimate | undefined;

  constructor(copy_threads: number) {
    this.#copy_threads = copy_threads;
  }

  get statistics(): StreamStatistics {
    return {
      streamed_bytes: this.#streamed_bytes,
      waited_ms: this.#waited_ms,
      link: this.#link,
      slow: this.#link && whySlow(this.#link),
    };
  }

  /** The computation waited since then. @param began_ms by performance.now() */
  waitedSince(began_ms: number): void {
    this.#waited_ms += performance.now() - began_ms;
  }

  came(bytes: number): void {
    this.#streamed_bytes += bytes;
  }

  /** What a load that is over says of the link. */
  observe(load: TensorLoading, bytes: number): void {
    const thread_ms = load.legs.reduce((sum, leg) => sum + leg.thread_ms, 0);
    const seconds = thread_ms / 1000 / this.#copy_threads;
    if (seconds > 0) this.#observe(bytes, seconds);
  }

  /** A product read so many bytes over the link. @param seconds for which it waited for them; absent: it computed */
  read(bytes: number, seconds = 0): void {
    this.came(bytes);
    if (seconds > 0) this.#observe(bytes, seconds);
  }

  #observe(bytes: number, seconds: number): void {
    if (bytes < observed_bytes_min && this.#link !== undefined) return;
    this.#link = observeTransfer(this.#link ?? newLinkEstimate(bytes / seconds), bytes, seconds);
  }
}
