/**
 * Cuts a load into pieces that threads take one after another. Plain tensors that are neighbours in the file and
 * in the pool are copied together (Tangram §4); large ones are cut. A tensor with a special layout is converted in
 * groups of rows where its layout allows it, so that a piece is converted while its bytes are in the cache.
 */

import type { PoolBytes } from '../../backend/pool-memory.ts';
import { row_group } from '../../engine/row-groups.ts';

/** Between neighbours, where one's bytes are no whole multiple of what the pool aligns to: at most a page. */
const alignment_gap_bytes = 4096;

/** A tensor of a model file and its place in the pool. */
export interface TensorLoad {
  /** For messages. */
  name: string;
  /** Bytes of the file that follow one another in the tensor: several where the engine joins projections. */
  parts: readonly FileRange[];
  /** ggml type id, contiguous extent, number of rows over all other dimensions, and of matrices (experts) in it. */
  type: number;
  row_elements: number;
  rows: number;
  planes: number;
  /** Index into the pool's layouts; 0 is plain memory. */
  layout: number;
  pool_offset: number;
  /** Bytes in the pool of one row; undefined where the layout can only be made from the whole tensor. */
  pool_row_bytes?: number;
  /** Of plain memory: so many bytes behind it in the pool are to be zero, for kernels that read beyond a last row. */
  zeros_behind?: number;
}

export interface FileRange {
  offset_bytes: number;
  size_bytes: number;
}

export type Piece = PlainPiece | ConvertedPiece;

/** Bytes that lie in the pool as in the file. */
export interface PlainPiece {
  kind: 'plain';
  file_offset: number;
  pool_offset: number;
  bytes: number;
  /** Bytes behind it in the pool that are to be zero; absent: none. */
  zeros_behind?: number;
}

/** Rows that ggml lays out anew. */
export interface ConvertedPiece {
  kind: 'converted';
  name: string;
  layout: number;
  type: number;
  row_elements: number;
  /** Of all planes together. */
  rows: number;
  planes: number;
  ranges: FileRange[];
  pool_offset: number;
  bytes: number;
}

/** What a thread takes at once. */
export type Unit = Piece[];

/** Where in the file a unit's bytes are. */
export function rangesOf(unit: Unit): FileRange[] {
  return unit.flatMap((piece): FileRange[] =>
    piece.kind === 'plain' ? [{ offset_bytes: piece.file_offset, size_bytes: piece.bytes }] : piece.ranges,
  );
}

/** What tensors take of the pool, in its order; neighbours are one. */
export function placesOf(tensors: readonly TensorLoad[]): PoolBytes[] {
  const places: { offset: number; bytes: number }[] = [];
  for (const tensor of tensors.toSorted((a, b) => a.pool_offset - b.pool_offset)) {
    const { pool_offset: offset, parts, rows, pool_row_bytes } = tensor;
    const file_bytes = parts.reduce((sum, { size_bytes }) => sum + size_bytes, 0);
    const bytes = pool_row_bytes === undefined ? file_bytes : rows * pool_row_bytes;
    const before = places.at(-1);
    if (before && offset - (before.offset + before.bytes) < alignment_gap_bytes)
      before.bytes = offset + bytes - before.offset;
    else places.push({ offset, bytes });
  }
  return places;
}

/** @param unit_bytes most bytes of a unit, unless one indivisible piece has more */
export function cutIntoUnits(tensors: readonly TensorLoad[], unit_bytes: number): Unit[] {
  const units: Unit[] = [];
  let unit: Unit = [];
  let bytes = 0;
  for (const piece of pieces(tensors, unit_bytes)) {
    if (bytes > 0 && bytes + piece.bytes > unit_bytes) {
      units.push(unit);
      unit = [];
      bytes = 0;
    }
    unit.push(piece);
    bytes += piece.bytes;
  }
  if (unit.length > 0) units.push(unit);
  return units;
}

function* pieces(tensors: readonly TensorLoad[], unit_bytes: number): Generator<Piece> {
  yield* cutPlain(joinNeighbours(tensors.filter(({ layout }) => layout === 0)), unit_bytes);
  for (const tensor of tensors) if (tensor.layout !== 0) yield* converted(tensor, unit_bytes);
}

function joinNeighbours(tensors: readonly TensorLoad[]): PlainPiece[] {
  const ranges: PlainPiece[] = [];
  for (const { parts, pool_offset, zeros_behind } of tensors) {
    let offset = pool_offset;
    for (const { offset_bytes, size_bytes } of parts) {
      ranges.push({ kind: 'plain', file_offset: offset_bytes, pool_offset: offset, bytes: size_bytes });
      offset += size_bytes;
    }
    if (zeros_behind) ranges.at(-1)!.zeros_behind = zeros_behind;
  }
  ranges.sort((a, b) => a.file_offset - b.file_offset);
  const joined: PlainPiece[] = [];
  for (const range of ranges) {
    const last = joined.at(-1);
    const follows =
      last &&
      range.file_offset === last.file_offset + last.bytes &&
      range.pool_offset === last.pool_offset + last.bytes;
    if (!follows) joined.push({ ...range });
    else {
      last.bytes += range.bytes;
      if (range.zeros_behind) last.zeros_behind = range.zeros_behind;
    }
  }
  return joined;
}

function* cutPlain(ranges: readonly PlainPiece[], unit_bytes: number): Generator<PlainPiece> {
  for (const { file_offset, pool_offset, bytes, zeros_behind } of ranges)
    for (let done = 0; done < bytes; done += unit_bytes) {
      const piece: PlainPiece = {
        kind: 'plain',
        file_offset: file_offset + done,
        pool_offset: pool_offset + done,
        bytes: Math.min(unit_bytes, bytes - done),
      };
      if (zeros_behind && done + unit_bytes >= bytes) piece.zeros_behind = zeros_behind;
      yield piece;
    }
}

function* converted(tensor: TensorLoad, unit_bytes: number): Generator<ConvertedPiece> {
  const { name, layout, type, row_elements, rows, planes, pool_offset, pool_row_bytes, parts } = tensor;
  const bytes = parts.reduce((sum, { size_bytes }) => sum + size_bytes, 0);
  const row_bytes = bytes / rows;
  const most =
    pool_row_bytes === undefined
      ? rows
      : Math.max(row_group, Math.floor(unit_bytes / row_bytes / row_group) * row_group);
  for (let row = 0; row < rows; row += most) {
    const count = Math.min(most, rows - row);
    yield {
      kind: 'converted',
      name,
      layout,
      type,
      row_elements,
      rows: count,
      planes: count === rows ? planes : 1,
      ranges: slice(parts, row * row_bytes, count * row_bytes),
      pool_offset: pool_offset + row * (pool_row_bytes ?? 0),
      bytes: count * row_bytes,
    };
  }
}

/** `bytes` from `begin` of the concatenated parts. */
function slice(parts: readonly FileRange[], begin: number, bytes: number): FileRange[] {
  const found: FileRange[] = [];
  let offset = 0;
  for (const { offset_bytes, size_bytes } of parts) {
    const from = Math.max(begin, offset);
    const to = Math.min(begin + bytes, offset + size_bytes);
    if (from < to) found.push({ offset_bytes: offset_bytes + from - offset, size_bytes: to - from });
    offset += size_bytes;
  }
  return found;
}
