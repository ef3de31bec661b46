import { describe, expect, it } from 'vitest';
import { row_group } from '../../../../agent/engine/row-groups.ts';
import { cutIntoUnits, type Piece, placesOf, type TensorLoad } from '../../../../agent/memory/load/pieces.ts';

const plain = (file_offset: number, bytes: number, pool_offset: number): TensorLoad => ({
  name: 'plain',
  parts: [{ offset_bytes: file_offset, size_bytes: bytes }],
  type: 0,
  row_elements: bytes / 4,
  rows: 1,
  planes: 1,
  layout: 0,
  pool_offset,
});

/** 18 bytes a row in the file, 20 in the pool. */
const special = (more: Partial<TensorLoad>): TensorLoad => ({
  name: 'special',
  parts: [{ offset_bytes: 1000, size_bytes: 100 * 18 }],
  type: 2,
  row_elements: 32,
  rows: 100,
  planes: 1,
  layout: 1,
  pool_offset: 64,
  pool_row_bytes: 20,
  ...more,
});

const flat = (units: readonly Piece[][]): Piece[] => units.flat();

describe('what a load takes of the pool', () => {
  it('is as long as it lies there, and neighbours are one', () => {
    const behind = 64 + 100 * 20;
    expect(placesOf([plain(0, 128, 100_000), special({}), plain(500, 64, behind + 60)])).toEqual([
      { offset: 64, bytes: 100 * 20 + 60 + 64 },
      { offset: 100_000, bytes: 128 },
    ]);
  });
});

describe('the pieces of a load', () => {
  it('join plain tensors that are neighbours in the file and in the pool', () => {
    const tensors = [plain(0, 64, 640), plain(64, 128, 704), plain(192, 64, 896), plain(512, 64, 960)];
    expect(flat(cutIntoUnits(tensors, 1024))).toEqual([
      { kind: 'plain', file_offset: 0, pool_offset: 640, bytes: 192 },
      { kind: 'plain', file_offset: 192, pool_offset: 896, bytes: 64 },
      { kind: 'plain', file_offset: 512, pool_offset: 960, bytes: 64 },
    ]);
  });

  it('cut large plain tensors, and put small ones together into units', () => {
    const units = cutIntoUnits([plain(0, 2500, 0), plain(5000, 100, 5000), plain(7000, 100, 7000)], 1000);
    expect(units.map((unit) => unit.map(({ bytes }) => bytes))).toEqual([[1000], [1000], [500, 100, 100]]);
  });

  it('have zeros behind the last of a tensor’s bytes, where they are asked for', () => {
    const tensors = [
      { ...plain(0, 2500, 0), zeros_behind: 96 },
      plain(2500, 64, 2624),
      { ...plain(2564, 64, 2688), zeros_behind: 0 },
      { ...plain(2628, 64, 2752), zeros_behind: 8 },
    ];
    expect(flat(cutIntoUnits(tensors, 1000))).toEqual([
      { kind: 'plain', file_offset: 0, pool_offset: 0, bytes: 1000 },
      { kind: 'plain', file_offset: 1000, pool_offset: 1000, bytes: 1000 },
      { kind: 'plain', file_offset: 2000, pool_offset: 2000, bytes: 500, zeros_behind: 96 },
      { kind: 'plain', file_offset: 2500, pool_offset: 2624, bytes: 192, zeros_behind: 8 },
    ]);
  });

  it('cut converted tensors at groups of rows, each at its own bytes of file and pool', () => {
    const pieces = flat(cutIntoUnits([special({})], 18 * row_group));
    expect(pieces).toHaveLength(4);
    pieces.forEach((piece, index) => {
      expect(piece).toMatchObject({
        kind: 'converted',
        rows: index < 3 ? row_group : 4,
        ranges: [{ offset_bytes: 1000 + index * row_group * 18 }],
        pool_offset: 64 + index * row_group * 20,
      });
    });
  });

  it('take a piece from several parts where a group of rows lies across them', () => {
    const parts = [
      { offset_bytes: 0, size_bytes: 40 * 18 },
      { offset_bytes: 9000, size_bytes: 60 * 18 },
    ];
    const pieces = flat(cutIntoUnits([special({ parts })], 18 * row_group));
    expect(pieces.map((piece) => (piece.kind === 'converted' ? piece.ranges : []))).toEqual([
      [{ offset_bytes: 0, size_bytes: 32 * 18 }],
      [
        { offset_bytes: 32 * 18, size_bytes: 8 * 18 },
        { offset_bytes: 9000, size_bytes: 24 * 18 },
      ],
      [{ offset_bytes: 9000 + 24 * 18, size_bytes: 32 * 18 }],
      [{ offset_bytes: 9000 + 56 * 18, size_bytes: 4 * 18 }],
    ]);
  });

  it('leave a tensor whole that can only be converted whole', () => {
    const { pool_row_bytes: _, ...whole } = special({ planes: 4 });
    expect(flat(cutIntoUnits([whole], 64))).toMatchObject([
      { kind: 'converted', rows: 100, planes: 4, bytes: 1800 },
    ]);
  });

  it('cover every byte once', () => {
    const tensors = [plain(0, 5000, 0), plain(5000, 64, 5056), special({}), special({ pool_offset: 9000 })];
    const pieces = flat(cutIntoUnits(tensors, 700));
    const bytes = pieces.reduce((sum, piece) => sum + piece.bytes, 0);
    expect(bytes).toBe(5064 + 2 * 1800);
    const places = new Set(pieces.map((piece) => piece.pool_offset));
    expect(places.size).toBe(pieces.length);
  });
});
