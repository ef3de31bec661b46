/** What of which model files lies in a pool, for a pool that comes after it. */
import type { FileRange } from './load/pieces.ts';

export interface ManifestModel {
  path: string;
  /** Of the file that the tensors came from, see `sharedVersionText`. */
  version: string;
  /** That the next request is for this model, at the time of writing. */
  probability: number;
  /** Of the file, what was in the pool, in its order. */
  ranges: FileRange[];
}

/** Ranges of one model, at most; neighbours are one range. */
export const manifest_ranges_max = 4096;
/** Tensors of a file are padded to so much, at most: a gap of that is no gap. */
const alignment_bytes = 4096;

/** Ranges of a file in its order, neighbours and overlaps as one; where there are too many, the first. */
export function mergeRanges(ranges: readonly FileRange[]): FileRange[] {
  const merged: FileRange[] = [];
  for (const { offset_bytes, size_bytes } of [...ranges].sort((a, b) => a.offset_bytes - b.offset_bytes)) {
    const last = merged.at(-1);
    const end = offset_bytes + size_bytes;
    if (last && offset_bytes - (last.offset_bytes + last.size_bytes) <= alignment_bytes)
      last.size_bytes = Math.max(last.size_bytes, end - last.offset_bytes);
    else merged.push({ offset_bytes, size_bytes });
  }
  return merged.slice(0, manifest_ranges_max);
}
