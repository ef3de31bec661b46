import koffi from 'koffi';
import { leaseHolds } from '../../../native/file-lease.ts';
import { type Ggml, GgmlType, tensorLayout } from '../../../native/ggml.ts';
import {
  isInPageCache,
  moveMemory,
  pageSize_bytes,
  populateForReading,
  readCachedInto,
  readInto,
} from '../../../native/memory-map.ts';
import type { Pointer } from '../../../native/signature.ts';
import { loadStreamCopy } from '../../../native/stream-copy.ts';
import { type Place, placeIn } from '../../backend/pool-memory.ts';
import { refusedWeights, writeWeights } from '../../engine/checked-weights.ts';
import { GroupClaims } from '../peers/group-claims.ts';
import { LoadCounters, type LoadWork } from './load-work.ts';
import type { ConvertedPiece, FileRange, Piece, Unit } from './pieces.ts';

/**
 * Of a piece that is copied past the caches. Lower: more pieces of which it takes as long to ask where they are as to
 * copy them; higher: fewer that are copied quickly.
 */
const streamed_bytes_min = 128 * 1024;
/** Beyond every piece: ggml compares what is written with the size of the tensor. */
const any_bytes = 2 ** 50;

/** Of a load, what one thread does. */
interface Share {
  work: LoadWork;
  structs: TensorStructs;
  counters: LoadCounters;
}

/** Where bytes of the file lie in memory. */
type Staged = (range: FileRange) => Pointer;

/** What one thread does of a load: reads units, and converts those whose layout is not that of the file. */
export class UnitLoader {
  readonly #ggml: Ggml;
  readonly #streamCopy = loadStreamCopy();
  #staging: StagingMemory | undefined;

  constructor(ggml: Ggml) {
    this.#ggml = ggml;
  }

  /** Takes units until none are left. What fails is told through the counters. */
  run(work: LoadWork): void {
    const share = this.open(work);
    while (share.step());
    share.end();
  }

  /** This thread's share of a load, to be done unit by unit; `end` frees what it needed. */
  open(work: LoadWork): { step(): boolean; end(): void } {
    const structs = new TensorStructs(this.#ggml, work);
    const claims = work.shared && new GroupClaims(work.shared.claims);
    const counters = new LoadCounters(work.counters);
    const share: Share = { work, structs, counters };
    return { step: () => this.#step(share, claims), end: () => structs.free() };
  }

  /**
   * Writes units to their places from bytes that are in memory already.
   * @returns their bytes
   */
  place(work: LoadWork, units: readonly Unit[], staged: Staged): number {
    const structs = new TensorStructs(this.#ggml, work);
    const share: Share = { work, structs, counters: new LoadCounters(work.counters) };
    try {
      let bytes = 0;
      for (const piece of units.flat()) {
        this.#load(share, piece, staged);
        bytes += piece.bytes;
      }
      return bytes;
    } finally {
      structs.free();
    }
  }

  /** @returns whether a unit was left to take */
  #step(share: Share, claims: GroupClaims | undefined): boolean {
    const { work, counters } = share;
    counters.enter();
    try {
      const index = counters.take(work.units.length);
      if (index === undefined) return false;
      // A peer brings it, or has tried to.
      if (claims && !claims.takeForFile(work.shared!.group_of[index]!)) return true;
      let bytes = 0;
      for (const piece of work.units[index]!) {
        this.#load(share, piece);
        bytes += piece.bytes;
      }
      counters.finish(bytes);
      return true;
    } catch (error) {
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

  free(): void {
    this.#staging?.free();
    this.#staging = undefined;
  }

  #load(share: Share, piece: Piece, staged?: Staged): void {
    const { work, structs, counters } = share;
    if (piece.kind === 'plain') {
      const place = placeIn(work.layouts[0]!, piece.pool_offset);
      const range = { offset_bytes: piece.file_offset, size_bytes: piece.bytes };
      if (work.upload) {
        const source = staged?.(range) ?? this.#stage(share, [range], undefined);
        const began_ms = performance.now();
        this.#ggml.ggml_backend_tensor_set(structs.bytesAt(place), source, 0, piece.bytes);
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
      this.free();
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

/** Where bytes of the file come together before they are converted or given to the device. */
interface StagingMemory {
  address: Pointer;
  bytes: number;
  free(): void;
}

/** @param hostType of page-locked memory, from which a device copies by itself; undefined, or none left: any memory */
function stagingMemory(ggml: Ggml, hostType: Pointer | undefined, bytes: number): StagingMemory {
  const buffer = hostType === undefined ? null : ggml.ggml_backend_buft_alloc_buffer(hostType, bytes);
  if (buffer) {
    const address = ggml.ggml_backend_buffer_get_base(buffer)!;
    return { address, bytes, free: () => ggml.ggml_backend_buffer_free(buffer) };
  }
  const address = koffi.alloc('uint8_t', bytes) as Pointer;
  return { address, bytes, free: () => koffi.free(address) };
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

/**
 * Bytes of the file in the page cache itself, which saves a copy; undefined where they must be read: they are not there
 * yet, or nothing keeps the file from being cut off meanwhile.
 */
function cachedSource({ mapping, descriptor }: LoadWork, range: FileRange): Pointer | undefined {
  if (mapping === undefined || !leaseHolds(descriptor)) return undefined;
  const address = mapping + BigInt(range.offset_bytes);
  return isInMemory(address, range.size_bytes) ? address : undefined;
}

function isInMemory(address: Pointer, size_bytes: number): boolean {
  const { begin, bytes } = pagesOf(address, size_bytes);
  return isInPageCache(begin, bytes);
}

/** The whole pages that some bytes lie in; the last one may end behind them. */
function pagesOf(address: Pointer, size_bytes: number): { begin: Pointer; bytes: number } {
  const before = address % BigInt(pageSize_bytes());
  return { begin: address - before, bytes: size_bytes + Number(before) };
}

class ReadFailure extends Error {
  readonly because: string;

  constructor(message: string, because: string) {
    super(message);
    this.because = because;
  }
}

/** Some of a tensor are NaN or infinite; its message is the tensor's name. */
class RefusedWeights extends Error {}

function stackOf(error: unknown): string {
  return error instanceof Error ? (error.stack ?? error.message) : String(error);
}

function readFully({ work, counters }: Share, address: Pointer, range: FileRange): void {
  const { descriptor, path } = work;
  let began_ms = performance.now();
  const cached = readCachedInto(address, descriptor, range.offset_bytes, range.size_bytes);
  if (cached > 0) counters.wentBy('cache', cached, began_ms);
  if (cached === range.size_bytes) return;
  began_ms = performance.now();
  for (let done = cached; done < range.size_bytes; ) {
    const offset = range.offset_bytes + done;
    const count = readInto(address + BigInt(done), descriptor, offset, range.size_bytes - done);
    if (count < 0)
      throw new ReadFailure(`${path} cannot be read`, `pread at byte ${offset} failed with errno ${-count}`);
    if (count === 0)
      throw new ReadFailure(
        `${path} ended while its weights were read`,
        `byte ${offset} was asked for and is not there`,
      );
    done += count;
  }
  counters.wentBy('disk', range.size_bytes - cached, began_ms);
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

  /** A tensor of any size at a place: bytes as they are. */
  bytesAt({ buffer, address }: Place): Pointer {
    let known = this.#known.get('bytes');
    if (!known) {
      const context = this.#context();
      known = { context, tensor: this.#ggml.ggml_new_tensor_1d(context, GgmlType.I8, any_bytes)! };
      this.#known.set('bytes', known);
    }
    koffi.encode(known.tensor, tensorLayout.buffer, 'void *', buffer);
    koffi.encode(known.tensor, tensorLayout.data, 'void *', address);
    return known.tensor;
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
