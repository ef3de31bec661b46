import { closeSync, fstatSync, openSync, statSync } from 'node:fs';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { isInPageCache, mapFile, pageSize_bytes, unmap } from '../../../native/memory-map.ts';
import { systemCode } from '../../../spec/errors/system-error.ts';
import { type ContentHashCache, rangeOfKey } from '../content-hashes.ts';
import { type FileVersion, fileVersion, versionChanges } from '../file-version.ts';
import type { FileRange } from '../load/pieces.ts';
import type { TensorRange } from './peer-messages.ts';

/** Of a file, looked at in one turn, a multiple of the page size. Lower: others wait less; higher: fewer turns. */
const look_bytes = 256 * 1024 * 1024;

interface Place {
  file: FileVersion;
  range: FileRange;
}

/** What lies in the pool of this worker as in files. Who asks waits for the iteration that runs now. */
export interface PooledTensors {
  /** @returns indices */
  held(contents: readonly string[]): Promise<number[]>;
  /** @returns undefined where the tensor is not there any more */
  read(range: TensorRange): Promise<Uint8Array | undefined>;
}

/**
 * Tensors of this worker's model files that its node has in memory, or the worker in its pool, for peers that load the
 * same ones. They are taken from the page cache where it has them: the pool is read by the thread that computes.
 */
export class SharedTensors {
  readonly #hashes: ContentHashCache;
  readonly #pool: PooledTensors;
  readonly #places = new Map<string, Place>();
  /** The last read of the pool: one at a time, so that at most one range lies between two iterations. */
  #reading: Promise<unknown> = Promise.resolve();

  constructor(hashes: ContentHashCache, pool: PooledTensors) {
    this.#hashes = hashes;
    this.#pool = pool;
  }

  /** The tensors of a file that was hashed can be asked for. */
  add(path: string): void {
    const stats = statSync(path, { bigint: true, throwIfNoEntry: false });
    const file = stats && fileVersion(path, stats);
    const contents = file && this.#hashes.read(file);
    if (!contents) return;
    for (const [key, content] of contents) this.#places.set(content, { file, range: rangeOfKey(key) });
  }

  /** @returns indices of those that are in the page cache or the pool now */
  async held(contents: readonly string[]): Promise<number[]> {
    const cached = await this.#cached(contents);
    const others = [...contents.keys()].filter((index) => !cached.has(index));
    if (others.length === 0) return [...cached];
    const pooled = await this.#pool.held(others.map((index) => contents[index]!));
    return [...cached, ...pooled.map((at) => others[at]!)];
  }

  /**
   * Bytes of a tensor that are not in the page cache.
   * @returns undefined where the cache has them, or the pool has not
   */
  async readPooled(range: TensorRange): Promise<Uint8Array | undefined> {
    if (this.#isCached(range)) return undefined;
    const read = this.#reading.then(() => this.#pool.read(range));
    this.#reading = read.catch(() => undefined);
    return read;
  }

  #isCached({ content, offset, bytes }: TensorRange): boolean {
    const place = this.#places.get(content);
    if (!place || offset + bytes > place.range.size_bytes) return false;
    const { offset_bytes } = place.range;
    const [cached] = residentRanges(place.file, [{ offset_bytes: offset_bytes + offset, size_bytes: bytes }]);
    return cached!;
  }

  async #cached(contents: readonly string[]): Promise<ReadonlySet<number>> {
    const byPath = new Map<string, { index: number; place: Place }[]>();
    contents.forEach((content, index) => {
      const place = this.#places.get(content);
      if (!place) return;
      const known = byPath.get(place.file.path);
      if (known) known.push({ index, place });
      else byPath.set(place.file.path, [{ index, place }]);
    });
    const held = new Set<number>();
    for (const asked of byPath.values()) {
      const ranges = asked.map(({ place }) => place.range);
      const resident = await residentRangesInTurns(asked[0]!.place.file, ranges);
      asked.forEach(({ index }, at) => {
        if (resident[at]) held.add(index);
      });
    }
    return held;
  }

  /**
   * Opens the file of a tensor; the caller closes it.
   * @returns undefined where there is no such range, or the file is another by now
   */
  open({ content, offset, bytes }: TensorRange): { descriptor: number; start: number } | undefined {
    const place = this.#places.get(content);
    if (!place || offset + bytes > place.range.size_bytes) return undefined;
    const descriptor = openUnchanged(place.file);
    return descriptor === undefined ? undefined : { descriptor, start: place.range.offset_bytes + offset };
  }
}

/** Of each range whether all of it is in the page cache; none of a file that changed or cannot be mapped. */
export function residentRanges(file: FileVersion, ranges: readonly FileRange[]): boolean[] {
  const looks = lookAtRanges(file, ranges);
  for (;;) {
    const { done, value } = looks.next();
    if (done) return value;
  }
}

/** The same, with turns for others between pieces of the file: a hundred gigabytes take a third of a second. */
export async function residentRangesInTurns(
  file: FileVersion,
  ranges: readonly FileRange[],
): Promise<boolean[]> {
  const looks = lookAtRanges(file, ranges);
  for (;;) {
    const { done, value } = looks.next();
    if (done) return value;
    await nextTurn();
  }
}

/** Yields after each piece of the file that it looked at. */
function* lookAtRanges(
  file: FileVersion,
  ranges: readonly FileRange[],
): Generator<undefined, boolean[], void> {
  const nothing = ranges.map(() => false);
  const descriptor = openUnchanged(file);
  if (descriptor === undefined) return nothing;
  const bytes = Number(file.size_bytes);
  try {
    const mapping = mapFile(descriptor, 0, bytes);
    if (mapping === undefined) return nothing;
    try {
      const page = pageSize_bytes();
      const resident: boolean[] = [];
      let looked_bytes = 0;
      for (const { offset_bytes, size_bytes } of ranges) {
        const end = offset_bytes + size_bytes;
        let at = Math.floor(offset_bytes / page) * page;
        let all = true;
        while (all && at < end) {
          const next = Math.min(end, at + look_bytes);
          all = isInPageCache(mapping + BigInt(at), next - at);
          looked_bytes += next - at;
          at = next;
          if (looked_bytes < look_bytes) continue;
          looked_bytes = 0;
          yield;
        }
        resident.push(all);
      }
      return resident;
    } finally {
      unmap(mapping, bytes);
    }
  } finally {
    closeSync(descriptor);
  }
}

function openUnchanged(file: FileVersion): number | undefined {
  let descriptor: number;
  try {
    descriptor = openSync(file.path, 'r');
  } catch (error) {
    const code = systemCode(error);
    if (code === 'ENOENT' || code === 'EACCES' || code === 'ESTALE') return undefined;
    throw error;
  }
  const now = fileVersion(file.path, fstatSync(descriptor, { bigint: true }));
  if (versionChanges(file, now).length === 0) return descriptor;
  closeSync(descriptor);
  return undefined;
}
