/** Bytes of a model file, for a thread of a load: from the page cache where it has them, else from the filesystem. */
import { leaseHolds } from '../../../native/file-lease.ts';
import { isInPageCache, pageSize_bytes, readCachedInto, readInto } from '../../../native/memory-map.ts';
import type { Pointer } from '../../../native/signature.ts';
import type { LoadCounters, LoadWork } from './load-work.ts';
import type { FileRange } from './pieces.ts';

/** Of a load, what a thread reads with. */
export interface Reading {
  work: Pick<LoadWork, 'descriptor' | 'path' | 'mapping'>;
  counters: LoadCounters;
}

/** A file that cannot be read on: its message says so, and `because` why. */
export class ReadFailure extends Error {
  readonly because: string;

  constructor(message: string, because: string) {
    super(message);
    this.because = because;
  }
}

export function readRefused(path: string, offset: number, errno: number): ReadFailure {
  return new ReadFailure(`${path} cannot be read`, `pread at byte ${offset} failed with errno ${errno}`);
}

export function fileEnded(path: string, offset: number): ReadFailure {
  return new ReadFailure(
    `${path} ended while its weights were read`,
    `byte ${offset} was asked for and is not there`,
  );
}

/** @throws ReadFailure */
export function readFully({ work, counters }: Reading, address: Pointer, range: FileRange): void {
  const { descriptor, path } = work;
  let began_ms = performance.now();
  const cached = readCachedInto(address, descriptor, range.offset_bytes, range.size_bytes);
  if (cached > 0) counters.wentBy('cache', cached, began_ms);
  if (cached === range.size_bytes) return;
  began_ms = performance.now();
  for (let done = cached; done < range.size_bytes; ) {
    const offset = range.offset_bytes + done;
    const count = readInto(address + BigInt(done), descriptor, offset, range.size_bytes - done);
    if (count < 0) throw readRefused(path, offset, -count);
    if (count === 0) throw fileEnded(path, offset);
    done += count;
  }
  counters.wentBy('disk', range.size_bytes - cached, began_ms);
}

/**
 * Bytes of the file in the page cache itself, which saves a copy; undefined where they must be read: they are not there
 * yet, or nothing keeps the file from being cut off meanwhile.
 */
export function cachedSource(
  { mapping, descriptor }: Reading['work'],
  range: FileRange,
): Pointer | undefined {
  if (mapping === undefined || !leaseHolds(descriptor)) return undefined;
  const address = mapping + BigInt(range.offset_bytes);
  return isInMemory(address, range.size_bytes) ? address : undefined;
}

export function isInMemory(address: Pointer, size_bytes: number): boolean {
  const { begin, bytes } = pagesOf(address, size_bytes);
  return isInPageCache(begin, bytes);
}

/** The whole pages that some bytes lie in; the last one may end behind them. */
export function pagesOf(address: Pointer, size_bytes: number): { begin: Pointer; bytes: number } {
  const before = address % BigInt(pageSize_bytes());
  return { begin: address - before, bytes: size_bytes + Number(before) };
}
