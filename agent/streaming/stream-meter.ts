import {
  type LinkEstimate,
  newLinkEstimate,
  observeTransfer,
  whySlow,
} from '../../solver/streaming/link-estimate.ts';
import type { TensorLoading } from '../memory/load/tensor-loading.ts';

/** Loads of fewer bytes say more of what it takes to begin one than of the link. */
const observed_bytes_min = 2 ** 20;
/**
 * Of the time that loads took lately, the part that went into reading the file from which on that is why a link is
 * slow. Of bytes it would say little: what the kernel reads ahead is in memory by the time that it is asked for. Lower:
 * files that are read now and then are named, too; higher: only those that host memory hardly keeps.
 */
const file_share_min = 0.25;
/** Weight of a load in that part. */
const file_weight = 0.1;

/** What streaming did so far. */
export interface StreamStatistics {
  streamed_bytes: number;
  /** Time for which the computation waited for bytes. */
  waited_ms: number;
  link: LinkEstimate | undefined;
  /** Why it is slower than it was at first, or than the plan takes it to be. */
  slow: string | undefined;
}

/** Counts what is brought for a model, and how fast. */
export class StreamMeter {
  readonly #copy_threads: number;
  readonly #planned_bytes_per_s: number | undefined;
  #streamed_bytes = 0;
  #waited_ms = 0;
  #link: LinkEstimate | undefined;
  /** Some load came from host memory alone. Until then the file was cold, or nobody tells memory and file apart. */
  #was_in_memory = false;
  /** Of the time of loads since, what went into reading the file: 0 to 1. */
  #file_share = 0;

  /** @param planned_bytes_per_s what the plan counts on; absent: it has no figure for it */
  constructor(copy_threads: number, planned_bytes_per_s?: number) {
    this.#copy_threads = copy_threads;
    this.#planned_bytes_per_s = planned_bytes_per_s;
  }

  get statistics(): StreamStatistics {
    return {
      streamed_bytes: this.#streamed_bytes,
      waited_ms: this.#waited_ms,
      link: this.#link,
      slow: this.#slow(),
    };
  }

  #slow(): string | undefined {
    const slow = this.#link && whySlow(this.#link, this.#planned_bytes_per_s);
    if (slow === undefined || this.#file_share < file_share_min) return slow;
    return `${slow}: of the time that its weights took last, ${(100 * this.#file_share).toFixed(0)} % went into reading their file, which host memory did not keep`;
  }

  /** The computation waited since then. @param began_ms by performance.now() */
  waitedSince(began_ms: number): void {
    this.#waited_ms += performance.now() - began_ms;
  }

  came(bytes: number): void {
    this.#streamed_bytes += bytes;
  }

  /** What a load that is over says of the link. */
  observe({ legs }: Pick<TensorLoading, 'legs'>, bytes: number): void {
    const thread_ms = legs.reduce((sum, leg) => sum + leg.thread_ms, 0);
    const seconds = thread_ms / 1000 / this.#copy_threads;
    if (!(seconds > 0)) return;
    const read = legs.find(({ leg }) => leg === 'disk');
    if (!read && !this.#was_in_memory && bytes >= observed_bytes_min) {
      // What a cold file gave is not what the link has.
      this.#was_in_memory = true;
      this.#link = undefined;
    }
    const file_share = (read?.thread_ms ?? 0) / thread_ms;
    if (this.#was_in_memory) this.#file_share += file_weight * (file_share - this.#file_share);
    this.#observe(bytes, seconds);
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
