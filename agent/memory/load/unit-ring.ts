import { constants } from 'node:os';
import { AsyncReads } from '../../../native/async-reads.ts';
import type { Ggml } from '../../../native/ggml.ts';
import { moveMemory, readInto } from '../../../native/memory-map.ts';
import type { Pointer } from '../../../native/signature.ts';
import type { DeviceCopies, Fence } from '../../backend/device/device-copies.ts';
import type { LoadCounters, LoadWork } from './load-work.ts';
import type { FileRange, Unit } from './pieces.ts';
import { cachedSource, fileEnded, type Reading, readFully, readRefused } from './read-file.ts';
import { placeInWindows, type ReadWindow, readWindows, windowMemory_bytes } from './read-windows.ts';
import { direct_alignment_bytes, type StagingMemory, stagingMemory } from './staging-memory.ts';

/**
 * Units of a thread in memory at once: those that are read, the one that is placed, and those on their way to the
 * device. Its memory is as many times the largest unit. Lower: less memory; higher: reads and uploads wait for each
 * other less.
 */
const ring_units = 4;
/** Where the kernel reads by itself, so many units are on their way from the disk before the one that is placed. */
const reads_ahead = ring_units - 1;
/** Of a unit, by the kernel at once; what is beyond them waits for the filesystem. Neighbours come with one read. */
const reads_max = 32;

/** EINVAL and EOPNOTSUPP: the filesystem has no direct reads, or asks for another alignment. */
const refusals: readonly number[] = [constants.errno.EINVAL, constants.errno.EOPNOTSUPP];

interface DirectRead {
  slot: Slot;
  /** Of its window. */
  index: number;
  address: Pointer;
  range: FileRange;
}

interface EndedDirectRead {
  address: Pointer;
  range: FileRange;
  /** Bytes, or a negative errno. */
  result: number;
}

interface Slot {
  memory: StagingMemory | undefined;
  unit: Unit;
  windows: readonly ReadWindow[];
  /** Reads that the kernel has not done yet. */
  pending: number;
  failure: Error | undefined;
  /** Uploads out of this memory. */
  fence: Fence | undefined;
}

/** A unit in memory: where each range of the file lies that it needs. */
export interface StagedUnit {
  unit: Unit;
  addressOf(range: FileRange): Pointer;
}

/**
 * Units on their way through a thread's memory, one after another:
 *
 *   disk ──▶ [ read ] [ read ] [ placed ] [ uploaded ] ──▶ pool
 *
 * Where the file is read past the page cache, the kernel reads while the thread converts; where a device copies by
 * itself, it does while the thread reads. Belongs to one thread, and keeps its memory from one load to the next.
 */
export class UnitRing {
  readonly #ggml: Ggml;
  readonly #slots: Slot[] = Array.from({ length: ring_units }, () => ({
    memory: undefined,
    unit: [],
    windows: [],
    pending: 0,
    failure: undefined,
    fence: undefined,
  }));
  #reads: AsyncReads | undefined;
  #tried = false;
  #copies: DeviceCopies | undefined;
  /** Of units begun, and of those that were placed. */
  #begun = 0;
  #placed = 0;
  #host_buffer_type: Pointer | undefined;

  constructor(ggml: Ggml) {
    this.#ggml = ggml;
  }

  /** Before the first unit of a load. @param copies those by which its units are placed; absent: the thread does it */
  prepare(work: LoadWork, copies: DeviceCopies | undefined): void {
    if (this.#copies !== copies) for (const slot of this.#slots) forgetFence(slot);
    this.#copies = copies;
    this.#host_buffer_type = work.upload?.host_buffer_type;
    if (!work.direct || this.#tried) return;
    this.#tried = true;
    this.#reads = AsyncReads.open(ring_units * reads_max);
  }

  /** Units that were begun and not placed yet. */
  get waiting(): number {
    return this.#begun - this.#placed;
  }

  /** How many it is of use to begin before the first of them is placed. */
  ahead(work: LoadWork): number {
    return work.direct && this.#reads ? reads_ahead : 1;
  }

  /**
   * Begins to read a unit; without a kernel that reads by itself, it is read when this returns.
   * @throws ReadFailure
   */
  begin(work: LoadWork, counters: LoadCounters, unit: Unit): void {
    const slot = this.#slots[this.#begun % ring_units]!;
    if (slot.fence) {
      const began_ms = performance.now();
      slot.fence.wait();
      counters.wentBy('upload', 0, began_ms);
    }
    const direct = work.direct && !counters.direct_errno ? work.direct : undefined;
    slot.unit = unit;
    slot.windows = readWindows(unit, direct ? direct_alignment_bytes : 1);
    slot.failure = undefined;
    const bytes = windowMemory_bytes(slot.windows);
    if (!slot.memory || slot.memory.bytes < bytes) {
      slot.memory?.free();
      slot.memory = stagingMemory(this.#ggml, this.#host_buffer_type, bytes);
    }
    this.#begun++;
    const reading = { work, counters };
    for (const [index, window] of slot.windows.entries()) {
      const address = slot.memory.address + BigInt(window.at);
      const within = trimmed(window, work.size_bytes);
      if (!direct) readFully(reading, address, within);
      else if (!copyCached(reading, address, within))
        this.#beginDirect(work, counters, { slot, index, address, range: within });
    }
  }

  /**
   * The oldest unit that was begun, once it is in memory.
   * @throws ReadFailure
   */
  next(work: LoadWork, counters: LoadCounters): StagedUnit {
    const slot = this.#slots[this.#placed % ring_units]!;
    const began_ms = performance.now();
    while (slot.pending > 0) this.#endRead(work, counters);
    counters.wentBy('disk', 0, began_ms);
    if (slot.failure) throw slot.failure;
    const { memory, windows, unit } = slot;
    return { unit, addressOf: (range) => memory!.address + BigInt(placeInWindows(windows, range)) };
  }

  /** What `next` gave was placed, or asked to be. */
  placed(): void {
    const slot = this.#slots[this.#placed % ring_units]!;
    this.#placed++;
    if (!this.#copies?.overlap) return;
    slot.fence ??= this.#copies.fence();
    slot.fence.set();
  }

  /** Waits for whatever is under way. Units that were not placed are forgotten. */
  settle(counters: LoadCounters): void {
    this.#reads?.finish();
    for (const slot of this.#slots) slot.pending = 0;
    this.#placed = this.#begun;
    const began_ms = performance.now();
    for (const { fence } of this.#slots) fence?.wait();
    counters.wentBy('upload', 0, began_ms);
  }

  free(): void {
    this.#reads?.close();
    this.#reads = undefined;
    this.#tried = false;
    for (const slot of this.#slots) {
      forgetFence(slot);
      slot.memory?.free();
      slot.memory = undefined;
    }
  }

  /** Whole pages are read past the page cache; the end of a file that fills none comes through it. */
  #beginDirect(work: LoadWork, counters: LoadCounters, asked: DirectRead): void {
    const { slot, index, address, range } = asked;
    const end = range.offset_bytes + range.size_bytes;
    const whole_end = Math.floor(work.size_bytes / direct_alignment_bytes) * direct_alignment_bytes;
    const direct_end = Math.min(end, whole_end);
    const direct_bytes = Math.max(0, direct_end - range.offset_bytes);
    if (direct_bytes > 0) {
      const part = { offset_bytes: range.offset_bytes, size_bytes: direct_bytes };
      const began_ms = performance.now();
      const { descriptor } = work.direct!;
      const tag = this.#slots.indexOf(slot) * reads_max + index;
      const reads = index < reads_max ? this.#reads : undefined;
      if (reads?.begin(tag, descriptor, address, part.offset_bytes, part.size_bytes) === 0) slot.pending++;
      else {
        const result = readInto(address, descriptor, part.offset_bytes, part.size_bytes);
        this.#take(work, counters, { address, range: part, result });
      }
      counters.wentBy('disk', 0, began_ms);
    }
    if (end <= whole_end) return;
    const tail = range.offset_bytes + direct_bytes;
    readFully({ work, counters }, address + BigInt(direct_bytes), {
      offset_bytes: tail,
      size_bytes: end - tail,
    });
  }

  #endRead(work: LoadWork, counters: LoadCounters): void {
    const { tag, result } = this.#reads!.next();
    const slot = this.#slots[Math.floor(tag / reads_max)]!;
    slot.pending--;
    const window = trimmed(slot.windows[tag % reads_max]!, work.size_bytes);
    const whole_end = Math.floor(work.size_bytes / direct_alignment_bytes) * direct_alignment_bytes;
    const range = { ...window, size_bytes: Math.min(window.size_bytes, whole_end - window.offset_bytes) };
    try {
      this.#take(work, counters, { address: slot.memory!.address + BigInt(window.at), range, result });
    } catch (error) {
      // Told when its unit has its turn.
      slot.failure ??= error as Error;
    }
  }

  /** What a direct read brought: where the filesystem does not take it, the bytes come through the page cache. */
  #take(work: LoadWork, counters: LoadCounters, read: EndedDirectRead): void {
    const { address, range, result } = read;
    if (result > 0) counters.wentBy('disk', result, performance.now());
    if (result === range.size_bytes) return;
    if (result === 0) throw fileEnded(work.path, range.offset_bytes);
    if (result < 0 && !refusals.includes(-result)) throw readRefused(work.path, range.offset_bytes, -result);
    if (result < 0) counters.refuseDirect(-result);
    // A read that ended early goes on where it may have to begin within a page.
    const done = Math.max(0, result);
    readFully({ work, counters }, address + BigInt(done), {
      offset_bytes: range.offset_bytes + done,
      size_bytes: range.size_bytes - done,
    });
  }
}

function forgetFence(slot: Slot): void {
  slot.fence?.wait();
  slot.fence?.free();
  slot.fence = undefined;
}

/** The part of a window that the file has. */
function trimmed(window: ReadWindow, file_bytes: number): ReadWindow {
  return { ...window, size_bytes: Math.min(window.size_bytes, file_bytes - window.offset_bytes) };
}

/**
 * By way of the mapping: what is read by pread has the kernel bring what follows it.
 * @returns whether all of the range was in the page cache
 */
function copyCached({ work, counters }: Reading, address: Pointer, range: FileRange): boolean {
  const began_ms = performance.now();
  const source = cachedSource(work, range);
  if (source === undefined) return false;
  moveMemory(address, source, range.size_bytes);
  counters.wentBy('cache', range.size_bytes, began_ms);
  return true;
}
