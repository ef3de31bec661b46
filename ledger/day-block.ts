/**
 * The hours of one day as one block of bytes, column by column: a question about months adds up numbers that lie side
 * by side, in the place of a million rows. Each column takes as many bytes a number as its largest needs.
 *
 * ```
 *   rows   widths             columns, each from a multiple of eight bytes
 *   4 B    1 B each, 0: all   hour of the day · series · sums in the order of `hours` · first, last (ms of the day)
 *          of it is zero
 * ```
 */
import { summedColumns } from './hour-sums.ts';

export type Numbers = Uint8Array | Uint16Array | Uint32Array | Float64Array;

const day_ms = 86_400_000;
/** Hour, series, sums, first and last. */
export const blockColumns = 2 + summedColumns.length + 2;
const firstColumn = blockColumns - 2;
const header_bytes = 4 + blockColumns;
const types = { 1: Uint8Array, 2: Uint16Array, 4: Uint32Array, 8: Float64Array } as const;
type Width = keyof typeof types;

/** @param rows of `hours`, all of that day (counted from 1970 in UTC), in the order of its key */
export function encodeDay(day: number, rows: readonly (readonly number[])[]): Buffer {
  const bases = Array.from({ length: blockColumns }, (_, column) => baseOf(column, day));
  const widths = bases.map((base, column) => {
    let largest = 0;
    for (const row of rows) largest = Math.max(largest, row[column]! - base);
    return largest === 0 ? 0 : widthOf(largest);
  });
  const bytes = widths.reduce((sum, width) => sum + aligned(width * rows.length), aligned(header_bytes));
  const block = Buffer.from(new ArrayBuffer(bytes));
  block.writeUInt32LE(rows.length, 0);
  let at = aligned(header_bytes);
  for (const [column, width] of widths.entries()) {
    block[4 + column] = width;
    if (width === 0) continue;
    const numbers = new types[width](block.buffer, at, rows.length);
    for (const [index, row] of rows.entries()) numbers[index] = row[column]! - bases[column]!;
    at += aligned(width * rows.length);
  }
  return block;
}

/** Columns of a block, undefined where all of one is zero; undefined where these bytes are no block. */
export function decodeDay(block: Buffer): { rows: number; columns: (Numbers | undefined)[] } | undefined {
  if (block.length < header_bytes) return undefined;
  const { buffer } = block.byteOffset % 8 === 0 ? block : new Uint8Array(block);
  const offset = block.byteOffset % 8 === 0 ? block.byteOffset : 0;
  const rows = block.readUInt32LE(0);
  const columns: (Numbers | undefined)[] = [];
  let at = aligned(header_bytes);
  for (let column = 0; column < blockColumns; column++) {
    const width = block[4 + column]!;
    if (width !== 0 && !isWidth(width)) return undefined;
    if (at + width * rows > block.length) return undefined;
    columns.push(width === 0 ? undefined : new types[width](buffer as ArrayBuffer, offset + at, rows));
    at += aligned(width * rows);
  }
  return { rows, columns };
}

/** What a column of a block is less than the same of `hours`. */
export function baseOf(column: number, day: number): number {
  if (column === 0) return 24 * day;
  return column >= firstColumn ? day_ms * day : 0;
}

function widthOf(largest: number): Width {
  if (largest < 2 ** 8) return 1;
  if (largest < 2 ** 16) return 2;
  return largest < 2 ** 32 ? 4 : 8;
}

function isWidth(width: number): width is Width {
  return width in types;
}

function aligned(bytes: number): number {
  return Math.ceil(bytes / 8) * 8;
}
