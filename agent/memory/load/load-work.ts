/**
 * One load as its threads see it: plain data that can be sent to them, and counters in shared memory. Addresses
 * are valid in every thread of the process.
 */
import type { HugeRange } from '../../../native/huge-pages.ts';
import type { Pointer } from '../../../native/signature.ts';
import { type LoadLeg, loadLegs } from '../../../spec/engine-contract.ts';
import type { DeviceUpload } from '../../backend/backend.ts';
import type { PoolSpan } from '../../backend/pool-memory.ts';
import type { Unit } from './pieces.ts';

export interface LoadWork {
  /** An open model file. */
  descriptor: number;
  path: string;
  size_bytes: number;
  /** Address of the whole file, mapped for reading what is in the page cache; undefined: it is read by pread alone. */
  mapping?: Pointer;
  /** Absent: all bytes come through the page cache. */
  direct?: DirectSource | undefined;
  /** Per layout of the pool. */
  layouts: readonly (readonly PoolSpan[])[];
  /**
   * Where the host cannot write to the pool: bytes are staged and given to the device, in memory of this type where it
   * has one. Undefined: they are read into their places.
   */
  upload: DeviceUpload | undefined;
  units: readonly Unit[];
  /** Of the places of its tensors, what gets huge pages before it is written; absent: nothing. */
  huge?: readonly HugeRange[];
  /** Where peers bring a part of it: which group each unit belongs to, and see `GroupClaims`. */
  shared?: { group_of: readonly number[]; claims: SharedArrayBuffer } | undefined;
  /** See `LoadCounters`. */
  counters: SharedArrayBuffer;
}

/** The same file, opened so that bytes come past the page cache. */
export interface DirectSource {
  descriptor: number;
}

/** What failed, in the words of the thread that saw it. */
export interface LoadFailure {
  /** Default: E_POOL_LOAD. */
  code?: 'E_MODEL_WEIGHTS';
  what: string;
  because: string;
}

const words = { next: 0, active: 1, failed: 2, text_bytes: 3, direct_errno: 4, huge: 5, count: 6 } as const;
const text_bytes_max = 4096;
/** Bytes of the load, then bytes and nanoseconds of each leg. */
const totals_count = 1 + 2 * loadLegs.length;
/** Beyond every count of units: a counter set to it hands out none. */
const no_more = 0x3fff_ffff;

/**
 * Counters of a load, shared by its threads. A thread enters before it takes a unit and leaves after it, so that
 * once no unit is left to be taken and nobody is inside, nobody writes to the pool any more.
 */
export class LoadCounters {
  readonly shared: SharedArrayBuffer;
  readonly #words: Int32Array;
  readonly #totals: BigInt64Array;
  readonly #text: Uint8Array;

  constructor(shared = new SharedArrayBuffer(4 * words.count + 8 * totals_count + text_bytes_max)) {
    this.shared = shared;
    this.#words = new Int32Array(shared, 0, words.count);
    this.#totals = new BigInt64Array(shared, 4 * words.count, totals_count);
    this.#text = new Uint8Array(shared, 4 * words.count + 8 * totals_count, text_bytes_max);
  }

  enter(): void {
    Atomics.add(this.#words, words.active, 1);
  }

  leave(): void {
    Atomics.sub(this.#words, words.active, 1);
    Atomics.notify(this.#words, words.active);
  }

  /** @returns the index of a unit that nobody else has; undefined where none is left */
  take(count: number): number | undefined {
    if (Atomics.load(this.#words, words.next) >= count) return undefined;
    const index = Atomics.add(this.#words, words.next, 1);
    return index < count ? index : undefined;
  }

  /** As `take`; undefined also where the next unit is not one that may be taken. */
  takeIf(count: number, mayTake: (index: number) => boolean): number | undefined {
    for (;;) {
      const index = Atomics.load(this.#words, words.next);
      if (index >= count || !mayTake(index)) return undefined;
      if (Atomics.compareExchange(this.#words, words.next, index, index + 1) === index) return index;
    }
  }

  /**
   * @param units of the load: once all are taken it may be over before long, and its places be somebody else's
   * @returns the index of a range that nobody else makes huge pages of; undefined where none is left
   */
  takeHuge(count: number, units: number): number | undefined {
    if (!this.left(units)) return undefined;
    const index = Atomics.add(this.#words, words.huge, 1);
    return index < count ? index : undefined;
  }

  finish(bytes: number): void {
    Atomics.add(this.#totals, 0, BigInt(bytes));
  }

  /** @param began_ms by performance.now() of any thread */
  wentBy(leg: LoadLeg['leg'], bytes: number, began_ms: number): void {
    const at = 1 + 2 * loadLegs.indexOf(leg);
    Atomics.add(this.#totals, at, BigInt(bytes));
    Atomics.add(this.#totals, at + 1, BigInt(Math.round((performance.now() - began_ms) * 1e6)));
  }

  /** Of which bytes have gone some. */
  get legs(): LoadLeg[] {
    return loadLegs.flatMap((leg, index) => {
      const bytes = Number(Atomics.load(this.#totals, 1 + 2 * index));
      const thread_ms = Number(Atomics.load(this.#totals, 2 + 2 * index)) / 1e6;
      return bytes === 0 ? [] : [{ leg, bytes, thread_ms }];
    });
  }

  /** The first failure is kept, and nobody takes another unit. */
  fail(failure: LoadFailure): void {
    Atomics.store(this.#words, words.next, no_more);
    if (Atomics.compareExchange(this.#words, words.failed, 0, 1) !== 0) return;
    const text = Buffer.from(JSON.stringify(failure));
    this.#text.set(text.subarray(0, text_bytes_max));
    Atomics.store(this.#words, words.text_bytes, Math.min(text.length, text_bytes_max));
  }

  /** Nobody takes another unit. */
  stop(): void {
    Atomics.store(this.#words, words.next, no_more);
  }

  /** Whether what was begun is of no use any more. */
  get stopped(): boolean {
    return Atomics.load(this.#words, words.next) >= no_more;
  }

  /** The filesystem does not read past the page cache: nobody tries again. */
  refuseDirect(errno: number): void {
    Atomics.store(this.#words, words.direct_errno, errno);
  }

  /** Why it does not; 0: it was not refused. */
  get direct_errno(): number {
    return Atomics.load(this.#words, words.direct_errno);
  }

  /** Whether units are left to be taken. */
  left(count: number): boolean {
    return Atomics.load(this.#words, words.next) < count;
  }

  /** Threads that are at a unit now. */
  get active(): number {
    return Atomics.load(this.#words, words.active);
  }

  get bytes(): number {
    return Number(Atomics.load(this.#totals, 0));
  }

  get failed(): boolean {
    return Atomics.load(this.#words, words.failed) !== 0;
  }

  /** To be read once nobody is inside. */
  get failure(): LoadFailure | undefined {
    if (!this.failed) return undefined;
    const text = this.#text.slice(0, Atomics.load(this.#words, words.text_bytes));
    return JSON.parse(Buffer.from(text).toString()) as LoadFailure;
  }

  /** Waits until the number of threads inside is no longer `active`, or the time is over. */
  wait(active: number, timeout_ms: number): void {
    Atomics.wait(this.#words, words.active, active, timeout_ms);
  }
}
