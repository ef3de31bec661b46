/** Our products of mixtures of experts, and the one that chooses among experts, against double precision. */
import { describe, expect, it } from 'vitest';
import { GgmlType, loadGgml } from '../../../native/ggml.ts';
import { PackedProducts } from '../../../native/packed-products.ts';
import type { Pointer } from '../../../native/signature.ts';
import { computed } from './graph-support.ts';
import {
  builtKernels,
  errorOf,
  type Matrix,
  madeMatrix,
  margin,
  type PackedType,
  pack,
  packedTypes,
  product,
  randomNumbers,
  setFor,
  widthFor,
} from './support.ts';

const kernels = builtKernels();
const ggml = loadGgml();
const types = Object.keys(packedTypes) as PackedType[];
/** As in products.test.ts. */
const error_max = 4e-7;

interface Mixture {
  /** One for each expert. */
  matrices: Matrix[];
  /** [rows, used] */
  ids: Int32Array;
  used: number;
  rows: number;
  /** [rows, 1 or used, k] */
  x: Float32Array;
  /** Whether each choice of a row has an x of its own. */
  apart: boolean;
}

function mixture(
  type: PackedType,
  [n, even, experts]: readonly [number, number, number],
  [rows, used]: readonly [number, number],
  { apart = false, chosen = (row: number, slot: number): number => (5 * row + 3 * slot) % experts } = {},
): Mixture {
  const next = randomNumbers(n + rows * 7 + used);
  const k = widthFor(type, even);
  return {
    matrices: Array.from({ length: experts }, () => madeMatrix(type, n, k, next)),
    ids: Int32Array.from({ length: rows * used }, (_, pair) => chosen(Math.floor(pair / used), pair % used)),
    used,
    rows,
    x: Float32Array.from({ length: rows * (apart ? used : 1) * k }, next),
    apart,
  };
}

/** x of a pair of a row and a choice. */
function rowOf({ matrices, x, used, apart }: Mixture, pair: number): Float32Array {
  const { k } = matrices[0]!;
  const row = apart ? pair : Math.floor(pair / used);
  return x.subarray(row * k, (row + 1) * k);
}

/** @returns [rows, used, n] */
function products(packed: PackedProducts, mixed: Mixture, threads: number, fixed_order = true): Float32Array {
  const { matrices, ids, used, rows, x, apart } = mixed;
  const { type, n, k } = matrices[0]!;
  return computed(ggml, threads, rows * used * n, ({ context, weights, input }) => {
    const tensor = ggml.ggml_new_tensor_3d(context, packedTypes[type], k, n, matrices.length)!;
    const all = weights(packed.bufferType, tensor, Buffer.concat(matrices.map(({ bytes }) => bytes)));
    const from = ggml.ggml_new_tensor_3d(context, GgmlType.F32, k, apart ? used : 1, rows)!;
    const choices = input(ggml.ggml_new_tensor_2d(context, GgmlType.I32, used, rows)!, ids);
    const groups = packed.groupExperts(context, choices, matrices.length);
    const packing = [context, all, input(from, x), groups, used * rows, fixed_order] as const;
    const activations: Pointer = packed.packExperts(...packing);
    return packed.multiplyExperts(context, all, activations, groups, [used, rows], fixed_order);
  });
}

/** n, k, experts; rows, experts of each: strips and blocks that are cut off, more experts than pairs, and fewer. */
const shapes = [
  [
    [16, 64, 4],
    [1, 1],
  ],
  [
    [50, 96, 3],
    [1, 3],
  ],
  [
    [33, 544, 40],
    [5, 2],
  ],
  [
    [80, 320, 4],
    [40, 2],
  ],
  // Sums of an expert with many rows come in parts, from more blocks than are multiplied at once.
  [
    [48, 2304, 2],
    [90, 1],
  ],
] as const;

describe.each(kernels.sets)('$name', (set) => {
  const packed = PackedProducts.open(ggml, kernels, set)!;

  it.each(types)('%s: each row is multiplied by the matrices of its experts, as if alone', (type) => {
    for (const [matrix, pairs] of shapes)
      for (const apart of [false, true]) {
        const mixed = mixture(type, matrix, pairs, { apart });
        const { matrices, ids } = mixed;
        const { n } = matrices[0]!;
        const y = products(packed, mixed, 1);
        const packedMatrices = matrices.map((each) => pack(kernels, set, each));
        for (const [pair, expert] of ids.entries()) {
          const own = new Float32Array(n + margin);
          own.set(y.subarray(pair * n, (pair + 1) * n));
          const x = rowOf(mixed, pair);
          const where = `${matrix} by ${pairs}, pair ${pair}`;
          expect(errorOf(set, matrices[expert]!, x, 1, own), where).toBeLessThan(error_max);
          const alone = product(kernels, set, matrices[expert]!, packedMatrices[expert]!, x, 1);
          expect(own.subarray(0, n), where).toEqual(alone.subarray(0, n));
        }
        expect(products(packed, mixed, 3)).toEqual(y);
      }
  });

  it('takes all rows by one expert, or by the last', () => {
    for (const only of [0, 6]) {
      const mixed = mixture('Q8_0', [48, 96, 7], [37, 1], { chosen: () => only });
      const y = products(packed, mixed, 2);
      const matrix = mixed.matrices[only]!;
      const whole = product(kernels, set, matrix, pack(kernels, set, matrix), mixed.x, 37);
      for (let row = 0; row < 37; row++)
        expect(y.subarray(row * 48, (row + 1) * 48)).toEqual(
          whole.subarray(row * (48 + margin), row * (48 + margin) + 48),
        );
    }
  });

  it('computes the one row of an expert apart where the order is free', () => {
    const mixed = mixture('Q4_0', [48, 96, 5], [4, 1], { chosen: (row) => (row === 3 ? 4 : 1) });
    const y = products(packed, mixed, 2, false);
    const matrix = mixed.matrices[4]!;
    const rows = pack(kernels, set, matrix);
    const apart = product(
      kernels,
      set,
      matrix,
      rows,
      rowOf(mixed, 3),
      1,
      1,
      setFor(kernels, set, 'Q4_0', false),
    );
    expect(y.subarray(3 * 48)).toEqual(apart.subarray(0, 48));
  });
});

it('a router’s scores are nearly exact, and the same bits alone, in a batch and on several threads', () => {
  const packed = PackedProducts.open(ggml, kernels)!;
  const plain = ggml.ggml_backend_cpu_buffer_type()!;
  for (const [n, k, m] of [
    [8, 256, 1],
    [7, 13, 5],
    [129, 70, 6],
    [1, 3, 2],
  ] as const) {
    const next = randomNumbers(n + k);
    const w = Float32Array.from({ length: n * k }, next);
    const x = Float32Array.from({ length: m * k }, next);
    const scores = (from: Float32Array, rows: number, threads: number): Float32Array =>
      computed(ggml, threads, n * rows, ({ context, weights, input }) => {
        const matrix = ggml.ggml_new_tensor_2d(context, GgmlType.F32, k, n)!;
        const bytes = new Uint8Array(w.buffer);
        const rowsOf = input(ggml.ggml_new_tensor_2d(context, GgmlType.F32, k, rows)!, from);
        return packed.multiplyExactly(context, weights(plain, matrix, bytes), rowsOf);
      });
    const y = scores(x, m, 1);
    expect(scores(x, m, 3)).toEqual(y);
    for (let row = 0; row < m; row++) {
      const own = y.subarray(row * n, (row + 1) * n);
      expect(scores(x.slice(row * k, (row + 1) * k), 1, 2)).toEqual(own);
      for (let column = 0; column < n; column++) {
        let sum = 0;
        for (let at = 0; at < k; at++) sum += x[row * k + at]! * w[column * k + at]!;
        expect(Math.abs(own[column]! - sum)).toBeLessThan(1e-6 * k);
      }
    }
  }
});
