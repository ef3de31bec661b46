import koffi from 'koffi';
import { type Ggml, memoryAt, tensorLayout } from '../../../native/ggml.ts';
import { makeHugePages } from '../../../native/huge-pages.ts';
import { moveMemory, populateForReading } from '../../../native/memory-map.ts';
import type { Pointer } from '../../../native/signature.ts';
import { loadStreamCopy } from '../../../native/stream-copy.ts';
import { DeviceCopies } from '../../backend/device/device-copies.ts';
import { type Place, placeIn } from '../../backend/pool-memory.ts';
import { refusedWeights, writeWeights } from '../../engine/checked-weights.ts';
import { GroupClaims } from '../peers/group-claims.ts';
import { LoadCounters, type LoadWork } from './load-work.ts';
import { type ConvertedPiece, type FileRange, type Piece, rangesOf, type Unit } from './pieces.ts';
import { cachedSource, isInMemory, pagesOf, ReadFailure, readFully } from './read-file.ts';
import { placeInWindows, readWindows, windowMemory_bytes } from './read-windows.ts';
import { type StagingMemory, stagingMemory } from './staging-memory.ts';
import { UnitRing } from './unit-ring.ts';

/**
 * Of a piece that is copied past the caches. Lower: more pieces of which it takes as long to ask where they are as to
 * copy them; higher: fewer that are copied quickly.
 */
const streamed_bytes_min = 128 * 1024;
/**
 * A unit that cannot be cut may be as large as a tensor: beyond this it is read alone, and not with others ahead of it.
 * Lower: fewer units are read ahead; higher: a thread may have more memory.
 */
const ring_unit_bytes_max = 16 * 1024 * 1024;
/** Of zeros, at once: more than what lies behind a tensor for CUDA's kernels, which is a part of a row of 512. */
const zeros_bytes = 4096;

/** Of a load, what one thread does. */
interface Share {
  work: LoadWork;
  structs: TensorStructs;
  counters: LoadCounters;
  claims: GroupClaims | undefined;
  /** Where peers bring a part of it: the group of each unit. */
  groups: ReadonlyMap<Unit, number> | undefined;
}

/** Of a load, what the thread that began it does between other things. */
export interface LoadShare {
  /** Brings one unit, or of those `in_memory` the next. @returns whether there was one to take */
  step(from: keyof typeof takers): boolean;
  end(): void;
}

/** Where bytes of the file lie in memory. */
type Staged = (range: FileRange) => Pointer;

/** What one thread does of a load: reads units, and converts those whose layout is not that of the file. */
export class UnitLoader {
  readonly #ggml: Ggml;
  readonly #streamCopy = loadStreamCopy();
  readonly #ring: UnitRing;
  #staging: StagingMemory | undefined;
  /** A unit that peers could bring, too, is read into it. */
  #ahead: StagingMemory | undefined;
  /** Nothing else is ever written to it: copies of it to a device may be under way. */
  #zeros: StagingMemory | undefined;
  #copies: DeviceCopies | undefined;

  constructor(ggml: Ggml) {
    this.#ggml = ggml;
    this.#ring = new UnitRing(ggml);
  }

  /** Takes units until none are left. What fails is told through the counters. */
  run(work: LoadWork): void {
    const share = this.#share(work);
    const { counters } = share;
    while (makePages(work, counters));
    if (!needsRing(work)) while (this.#step(share));
    else {
      this.#ring.prepare(work, this.#copies);
      // What is on its way when a step ends is this thread's still.
      counters.enter();
      try {
        while (this.#ringStep(share, this.#ring.ahead(work)));
      } finally {
        this.#ring.settle(counters);
        counters.leave();
      }
    }
    share.structs.free();
  }

  /** This thread's share of a load, to be done unit by unit; `end` frees what it needed. */
  open(work: LoadWork): LoadShare {
    const share = this.#share(work);
    const ring = needsRing(work);
    if (ring) this.#ring.prepare(work, this.#copies);
    const step: LoadShare['step'] = (from) =>
      (from === 'any' && makePages(work, share.counters)) ||
      (ring ? this.#settledStep(share, takers[from]) : this.#step(share, takers[from]));
    return { step, end: () => share.structs.free() };
  }

  /**
   * Writes units to their places from bytes that are in memory already.
   * @returns their bytes
   */
  place(work: LoadWork, units: readonly Unit[], staged: Staged): number {
    const share = this.#share({ ...work, shared: undefined });
    try {
      let bytes = 0;
      for (const piece of units.flat()) {
        this.#load(share, piece, staged);
        bytes += piece.bytes;
      }
      this.#copies?.finish();
      return bytes;
    } finally {
      share.structs.free();
    }
  }

  #share(work: LoadWork): Share {
    if (work.upload) this.#copies ??= new DeviceCopies(this.#ggml, work.upload.device);
    const { shared } = work;
    return {
      work,
      structs: new TensorStructs(this.#ggml, work),
      counters: new LoadCounters(work.counters),
      claims: shared && new GroupClaims(shared.claims),
      groups: shared && new Map(work.units.map((unit, index) => [unit, shared.group_of[index]!])),
    };
  }

  /** @returns whether a unit was left to take */
  #step(share: Share, take: Taker = takeUnit): boolean {
    return this.#guarded(share, () => {
      const unit = take(share);
      if (unit) this.#loadUnit(share, unit);
      return unit !== undefined;
    });
  }

  /** As `#step`; nothing is on its way when it returns. */
  #settledStep(share: Share, take: Taker): boolean {
    return this.#guarded(share, () => {
      try {
        return this.#ringStep(share, 1, take);
      } finally {
        this.#ring.settle(share.counters);
      }
    });
  }

  /**
   * Begins as many units as are to be read ahead, and places the oldest of them.
   * @returns whether there was one
   */
  #ringStep(share: Share, ahead: number, take: Taker = takeUnit): boolean {
    const { work, counters } = share;
    const ring = this.#ring;
    return this.#guarded(share, () => {
      while (ring.waiting < ahead) {
        const unit = take(share);
        if (!unit) break;
        if (bytesOf(unit) <= ring_unit_bytes_max) ring.begin(work, counters, unit);
        else this.#loadUnit(share, unit);
      }
      if (ring.waiting === 0 || counters.stopped) return false;
      const { unit, addressOf } = ring.next(work, counters);
      const isPlaced = this.#placeUnit(share, unit, addressOf);
      ring.placed();
      if (isPlaced) counters.finish(bytesOf(unit));
      return true;
    });
  }

  #guarded({ work, counters }: Share, act: () => boolean): boolean {
    counters.enter();
    try {
      return act();
    } catch (error) {
      // Peers bring what this thread had in hand, or nobody wants it any more.
      if (counters.stopped) return false;
      // Whatever it is, the tensors are not whole, and the thread that waits must hear of it.
      if (error instanceof ReadFailure) counters.fail({ what: error.message, because: error.because });
      else if (error instanceof RefusedWeights)
        counters.fail({ code: 'E_MODEL_WEIGHTS', ...refusedWeights(work.path, error.message) });
      else counters.fail({ what: `loading ${work.path} failed`, because: stackOf(error) });
      return false;
    } finally {
      counters.leave();
    }
  }

  #loadUnit(share: Share, unit: Unit): void {
    const reads = share.groups !== undefined && !isCached(share.work, unit);
    const staged = reads ? this.#readAhead(share, unit) : undefined;
    if (this.#placeUnit(share, unit, staged, () => this.#copies?.finish()))
      share.counters.finish(bytesOf(unit));
  }

  /** Where peers could bring it, too, a read that hangs is not to have the places of the tensors in its hands. */
  #readAhead(share: Share, unit: Unit): Staged {
    const windows = readWindows(unit, 1);
    const bytes = windowMemory_bytes(windows);
    if (!this.#ahead || this.#ahead.bytes < bytes) {
      this.#ahead?.free();
      this.#ahead = stagingMemory(this.#ggml, share.work.upload?.host_buffer_type, bytes);
    }
    const { address } = this.#ahead;
    for (const window of windows) readFully(share, address + BigInt(window.at), window);
    return (range) => address + BigInt(placeInWindows(windows, range));
  }

  /** Writes a unit to its places. @returns false where it was recalled: peers bring it, and nothing was written */
  #placeUnit(
    share: Share,
    unit: Unit,
    staged: Staged | undefined,
    end: () => void = () => undefined,
  ): boolean {
    const { claims, groups } = share;
    const group = groups?.get(unit);
    if (group !== undefined && !claims!.beginUnit(group)) return false;
    let isPlaced = false;
    try {
      for (const piece of unit) this.#load(share, piece, staged);
      end();
      isPlaced = true;
    } finally {
      if (group !== undefined) claims!.endUnit(group, isPlaced);
    }
    return true;
  }

  free(): void {
    this.#freeStaging();
    this.#ahead?.free();
    this.#ahead = undefined;
    this.#ring.free();
    this.#copies?.free();
    this.#copies = undefined;
    this.#zeros?.free();
    this.#zeros = undefined;
  }

  #freeStaging(): void {
    this.#staging?.free();
    this.#staging = undefined;
  }

  #load(share: Share, piece: Piece, staged?: Staged): void {
    const { work, structs, counters } = share;
    if (piece.kind === 'plain') {
      const place = placeIn(work.layouts[0]!, piece.pool_offset);
      if (piece.zeros_behind) {
        const behind = { ...place, address: place.address + BigInt(piece.bytes) };
        this.#writeZeros(work, behind, piece.zeros_behind);
      }
      const range = { offset_bytes: piece.file_offset, size_bytes: piece.bytes };
      if (this.#copies) {
        const source = staged?.(range) ?? this.#stage(share, [range], undefined);
        const began_ms = performance.now();
        this.#copies.write(place, source, piece.bytes);
        // The one place where bytes are read to serves the next piece, too.
        if (!staged) this.#copies.finish();
        counters.wentBy('upload', piece.bytes, began_ms);
      } else if (staged || !this.#stream(share, place.address, range))
        copyRange(share, place.address, range, staged);
      return;
    }
    const tensor = structs.at(piece);
    const source = sourceInMemory(work, piece, staged) ?? this.#stage(share, piece.ranges, staged);
    const began_ms = performance.now();
    if (!writeWeights(this.#ggml, tensor, source, piece)) throw new RefusedWeights(piece.name);
    counters.wentBy('convert', piece.bytes, began_ms);
  }

  #writeZeros({ upload }: LoadWork, { buffer, address }: Place, bytes: number): void {
    if (!this.#copies) {
      memoryAt(address, bytes).fill(0);
      return;
    }
    if (!this.#zeros) {
      this.#zeros = stagingMemory(this.#ggml, upload?.host_buffer_type, zeros_bytes);
      memoryAt(this.#zeros.address, zeros_bytes).fill(0);
    }
    for (let done = 0; done < bytes; done += zeros_bytes) {
      const place = { buffer, address: address + BigInt(done) };
      this.#copies.write(place, this.#zeros.address, Math.min(zeros_bytes, bytes - done));
    }
  }

  /**
   * Copies from the page cache past the CPU's caches, where both ends are in memory: a new page of the pool is in the
   * caches when the kernel has zeroed it, and is written there sooner.
   * @returns whether it did
   */
  #stream({ work, counters }: Share, address: Pointer, range: FileRange): boolean {
    const began_ms = performance.now();
    if (!this.#streamCopy || range.size_bytes < streamed_bytes_min) return false;
    if (!isInMemory(address, range.size_bytes)) return false;
    const source = cachedSource(work, range);
    if (source === undefined) return false;
    // Pages of the file are mapped as they are touched: threads that have them mapped first get into each other's way.
    this.#streamCopy(address, source, range.size_bytes);
    counters.wentBy('cache', range.size_bytes, began_ms);
    return true;
  }

  #stage(share: Share, ranges: readonly FileRange[], staged: Staged | undefined): Pointer {
    const bytes = ranges.reduce((sum, { size_bytes }) => sum + size_bytes, 0);
    if (!this.#staging || this.#staging.bytes < bytes) {
      this.#freeStaging();
      this.#staging = stagingMemory(this.#ggml, share.work.upload?.host_buffer_type, bytes);
    }
    let { address } = this.#staging;
    for (const range of ranges) {
      copyRange(share, address, range, staged);
      address += BigInt(range.size_bytes);
    }
    return this.#staging.address;
  }
}

/**
 * Makes huge pages of one more range of a load. What is written to before would have to be copied, so that all threads
 * begin with it.
 * @returns whether there was one
 */
function makePages({ huge = [], units }: LoadWork, counters: LoadCounters): boolean {
  // As with units: while somebody is inside, the load is not over.
  counters.enter();
  try {
    const index = counters.takeHuge(huge.length, units.length);
    if (index !== undefined) makeHugePages(huge[index]!);
    return index !== undefined;
  } finally {
    counters.leave();
  }
}

/** Whether units come together in memory before they are placed, so that others are under way meanwhile. */
function needsRing({ upload, direct }: LoadWork): boolean {
  return upload !== undefined || direct !== undefined;
}

type Taker = (share: Share) => Unit | undefined;

const takers = { any: takeUnit, in_memory: takeCachedUnit };

/** The next unit that this side of a load brings. */
function takeUnit({ work, counters, claims }: Share): Unit | undefined {
  for (;;) {
    const index = counters.take(work.units.length);
    if (index === undefined) return undefined;
    // Else a peer brings it, or has tried to.
    if (!claims || claims.takeForFile(work.shared!.group_of[index]!)) return work.units[index]!;
  }
}

/** The same where the page cache has all of it: no disk is waited for, which could hang. */
function takeCachedUnit({ work, counters, claims }: Share): Unit | undefined {
  for (;;) {
    const index = counters.takeIf(work.units.length, (next) => isCached(work, work.units[next]!));
    if (index === undefined) return undefined;
    if (!claims || claims.takeForFile(work.shared!.group_of[index]!)) return work.units[index]!;
  }
}

function isCached(work: LoadWork, unit: Unit): boolean {
  return rangesOf(unit).every((range) => cachedSource(work, range) !== undefined);
}

function bytesOf(unit: Unit): number {
  return unit.reduce((sum, { bytes }) => sum + bytes, 0);
}

/** The bytes of a piece in one place of the memory; undefined where they must be brought together, or read. */
function sourceInMemory(
  work: LoadWork,
  { ranges }: ConvertedPiece,
  staged: Staged | undefined,
): Pointer | undefined {
  const [range, ...others] = ranges;
  if (!range || others.length > 0) return undefined;
  if (staged) return staged(range);
  const source = cachedSource(work, range);
  if (source === undefined) return undefined;
  const { begin, bytes } = pagesOf(source, range.size_bytes);
  return populateForReading(begin, bytes) ? source : undefined;
}

function copyRange(share: Share, address: Pointer, range: FileRange, staged: Staged | undefined): void {
  if (staged) moveMemory(address, staged(range), range.size_bytes);
  else readFully(share, address, range);
}

/** Some of a tensor are NaN or infinite; its message is the tensor's name. */
class RefusedWeights extends Error {}

function stackOf(error: unknown): string {
  return error instanceof Error ? (error.stack ?? error.message) : String(error);
}

/** Tensor structs that are pointed at one place of the pool after another, one a shape and layout. */
class TensorStructs {
  readonly #ggml: Ggml;
  readonly #work: LoadWork;
  readonly #known = new Map<string, { context: Pointer; tensor: Pointer }>();

  constructor(ggml: Ggml, work: LoadWork) {
    this.#ggml = ggml;
    this.#work = work;
  }

  at(piece: ConvertedPiece): Pointer {
    const { layout, type, row_elements, rows, planes, pool_offset } = piece;
    const { buffer, address } = placeIn(this.#work.layouts[layout]!, pool_offset);
    const key = [layout, type, row_elements, rows, planes].join();
    const known = this.#known.get(key);
    if (known) {
      koffi.encode(known.tensor, tensorLayout.data, 'void *', address);
      return known.tensor;
    }
    const ggml = this.#ggml;
    const context = this.#context();
    const tensor = ggml.ggml_new_tensor_3d(context, type, row_elements, rows / planes, planes)!;
    ggml.ggml_backend_tensor_alloc(buffer, tensor, address);
    this.#known.set(key, { context, tensor });
    return tensor;
  }

  #context(): Pointer {
    return this.#ggml.ggml_init({
      mem_size: 2 * Number(this.#ggml.ggml_tensor_overhead()),
      mem_buffer: null,
      no_alloc: true,
    })!;
  }

  free(): void {
    for (const { context } of this.#known.values()) this.#ggml.ggml_free(context);
  }
}
