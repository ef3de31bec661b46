/**
 * Keys and values of a sequence in host memory or on a disk, while its blocks serve others: byte for byte, and checked.
 */
import { crc32 } from 'node:zlib';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { KvMemory, RowRun } from './kv-memory.ts';
import { rowExtents } from './kv-runs.ts';
import { type ParkingDisk, ParkingFailure, type ParkingFile } from './parking-disk.ts';

export interface SwappedKv {
  readonly tokens: number;
  /** Per layer keys, then values, each as rows [tokens, row_bytes]. */
  readonly rows: Uint8Array;
  readonly checksum: number;
}

/** The same in a file. */
export interface FiledKv {
  readonly tokens: number;
  readonly bytes: number;
  readonly checksum: number;
  readonly file: ParkingFile;
}

/** Copies the rows of so many tokens out of their blocks. */
export function swapOutKv(kv: KvMemory, blocks: readonly number[], tokens: number): SwappedKv {
  const rows = new Uint8Array(tokens * kv.token_bytes);
  kv.readRuns(runsOf(rows, runs(kv, blocks, tokens)));
  return { tokens, rows, checksum: crc32(rows) };
}

/**
 * Copies the rows into blocks that are long enough for them.
 * @throws HpcserveError E_ENGINE_COMPUTE: the bytes are not those that were parked
 */
export function swapInKv(
  kv: KvMemory,
  blocks: readonly number[],
  { tokens, rows, checksum }: SwappedKv,
): void {
  if (crc32(rows) !== checksum) throw changed('in host memory');
  kv.writeRuns(runsOf(rows, runs(kv, blocks, tokens)));
}

/** @returns undefined where the disk does not take them */
export function fileKv(
  kv: KvMemory,
  blocks: readonly number[],
  tokens: number,
  disk: ParkingDisk,
): FiledKv | undefined {
  let file: ParkingFile | undefined;
  try {
    file = disk.create(tokens * kv.token_bytes);
    let checksum = 0;
    for (const { matrix, row, bytes } of withBytes(runs(kv, blocks, tokens))) {
      kv.readRows(matrix, row, bytes);
      checksum = crc32(bytes, checksum);
      file.write(bytes);
    }
    return { tokens, bytes: tokens * kv.token_bytes, checksum, file };
  } catch (error) {
    file?.close();
    // The disk has noted what it was.
    if (error instanceof ParkingFailure) return undefined;
    throw error;
  }
}

/**
 * Copies the rows into blocks that are long enough for them, and gives up the file.
 * @throws HpcserveError E_ENGINE_COMPUTE: the bytes are not those that were parked, or cannot be read; then what the
 * blocks hold means nothing
 */
export function unfileKv(kv: KvMemory, blocks: readonly number[], { tokens, checksum, file }: FiledKv): void {
  let found = 0;
  try {
    for (const { matrix, row, bytes } of withBytes(runs(kv, blocks, tokens))) {
      file.read(bytes);
      found = crc32(bytes, found);
      kv.writeRows(matrix, row, bytes);
    }
  } catch (error) {
    if (!(error instanceof ParkingFailure)) throw error;
    throw new HpcserveError('E_ENGINE_COMPUTE', {
      what: 'keys and values that were parked on disk cannot be read back',
      because: error.message,
    });
  } finally {
    file.close();
  }
  if (found !== checksum) throw changed('on disk');
}

function changed(where: string): HpcserveError {
  return new HpcserveError('E_ENGINE_COMPUTE', {
    what: `keys and values that were parked ${where} have changed there`,
    because: 'their checksum is another',
  });
}

function* runsOf(rows: Uint8Array, found: Iterable<Run>): Generator<RowRun> {
  for (const { matrix, row, begin, end } of found) yield { matrix, row, host: rows.subarray(begin, end) };
}

/** Each run with memory of its size, the same for all: runs of a sequence are as long in one matrix as in the next. */
function* withBytes(found: Iterable<Run>): Generator<Run & { bytes: Uint8Array }> {
  let memory = new Uint8Array(0);
  for (const run of found) {
    const length = run.end - run.begin;
    if (memory.length < length) memory = new Uint8Array(length);
    yield { ...run, bytes: memory.subarray(0, length) };
  }
}

interface Run {
  matrix: number;
  /** The first of it. */
  row: number;
  /** Bytes [begin, end) of what is parked. */
  begin: number;
  end: number;
}

/** Runs of rows that lie side by side in the cache, of every matrix. */
function* runs(kv: KvMemory, blocks: readonly number[], tokens: number): Generator<Run> {
  const found = rowExtents(kv, blocks, { begin: 0, end: tokens });
  let begin = 0;
  for (let matrix = 0; matrix < kv.n_matrices; matrix++)
    for (const { row, count } of found) {
      const end = begin + count * kv.row_bytes;
      yield { matrix, row, begin, end };
      begin = end;
    }
}
