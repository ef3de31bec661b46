/** Cuts what a unit needs of its file into reads: ranges that lie close together come with one. */
import { type FileRange, rangesOf, type Unit } from './pieces.ts';

/** A part of a file, and where it lies in the memory that a unit is read into. */
export interface ReadWindow extends FileRange {
  at: number;
}

/** Between ranges: what is read and not used. Lower: more reads; higher: more bytes. */
const gap_bytes_max = 16 * 1024;
/** Of windows that begin anywhere, in memory: a cache line. */
const line_bytes = 64;

/**
 * @param alignment of offsets and sizes in the file, and of places in memory; 1: none is asked for
 * @returns in the order of the file, none of them in another; the last may go beyond the end of the file
 */
export function readWindows(unit: Unit, alignment: number): ReadWindow[] {
  const ranges = rangesOf(unit);
  ranges.sort((a, b) => a.offset_bytes - b.offset_bytes);
  const windows: ReadWindow[] = [];
  for (const { offset_bytes, size_bytes } of ranges) {
    const begin = Math.floor(offset_bytes / alignment) * alignment;
    const end = Math.ceil((offset_bytes + size_bytes) / alignment) * alignment;
    const last = windows.at(-1);
    const last_end = last ? last.offset_bytes + last.size_bytes : Number.NEGATIVE_INFINITY;
    if (last && begin <= last_end + gap_bytes_max)
      last.size_bytes = Math.max(last_end, end) - last.offset_bytes;
    else windows.push({ offset_bytes: begin, size_bytes: end - begin, at: 0 });
  }
  const step = Math.max(alignment, line_bytes);
  let at = 0;
  for (const window of windows) {
    window.at = at;
    at += Math.ceil(window.size_bytes / step) * step;
  }
  return windows;
}

/** Memory that windows take together. */
export function windowMemory_bytes(windows: readonly ReadWindow[]): number {
  const last = windows.at(-1);
  return last ? last.at + last.size_bytes : 0;
}

/** @returns where a range of the unit lies in the memory of its windows */
export function placeInWindows(
  windows: readonly ReadWindow[],
  { offset_bytes, size_bytes }: FileRange,
): number {
  const found = windows.find(
    (window) =>
      window.offset_bytes <= offset_bytes &&
      offset_bytes + size_bytes <= window.offset_bytes + window.size_bytes,
  );
  if (!found) throw new Error(`bytes ${offset_bytes} to ${offset_bytes + size_bytes} are in no window`);
  return found.at + offset_bytes - found.offset_bytes;
}
