/**
 * Products whose weights stay in host memory: the kernels' own sources on an emulated device, on every machine, and on
 * a GPU where there is one and the build found nvcc.
 */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { compileEmulatedHybridGemm } from '../../../.ci/compile-cuda.ts';
import {
  type HybridDevice,
  type HybridGemm,
  type HybridMultiplication,
  loadHybridGemm,
} from '../../../native/cuda/hybrid-gemm.ts';
import { hybridGemmFile } from '../../../native/cuda/library-file.ts';
import { hybridCost, tile_rows_choices } from '../../../solver/streaming/hybrid-product.ts';
import { madeMatrix, type PackedType, packedTypes, randomNumbers, widthFor } from '../kernels/support.ts';
import { errorOf, madeRows, multiplyOn, packInto } from './support.ts';

const folder = mkdtempSync(join(tmpdir(), 'hpcserve-cuda-'));
let emulated: HybridGemm;
beforeAll(() => {
  compileEmulatedHybridGemm(folder, 'g++');
  emulated = loadHybridGemm(join(folder, hybridGemmFile))!;
}, 300_000);
afterAll(() => rmSync(folder, { recursive: true, force: true }));

const types: readonly PackedType[] = ['BF16', 'Q8_0'];
/** Rows, columns, inner: one of each; ends in the middle of everything; whole tiles; several panels; many rows. */
const shapes = [
  [1, 1, 1],
  [1, 33, 96],
  [5, 130, 70],
  [16, 128, 512],
  [17, 193, 580],
  [260, 130, 70],
] as const;
const alphas = [0, 0.5, 1];
/** Sums of F32 in the order of the instructions, beside double precision. */
const error_max = 2e-6;

/** On a GPU the tensor cores cut partial sums off, some bits further down. */
const error_max_gpu = 1e-4;

function expectRight(library: HybridGemm, device: HybridDevice, limit: number): void {
  for (const type of types)
    for (const [m, n, inner] of shapes) {
      const next = randomNumbers(m * 1000 + n);
      const k = widthFor(type, inner);
      const packed = packInto(library, madeMatrix(type, n, k, next));
      const x = madeRows(m, k, next);
      for (const tile_rows of tile_rows_choices)
        for (const alpha of alphas) {
          const y = multiplyOn(device, packed, x, m, { alpha, tile_rows });
          const what = `${type} ${m} × ${n} × ${k}, M tile ${tile_rows}, alpha ${alpha}`;
          expect(errorOf(packed.matrix, x, m, y), what).toBeLessThan(limit);
        }
      library.freeHost(packed.memory);
    }
}

/** A row has the same bits by any way, beside any others. */
function expectSameBits(library: HybridGemm, device: HybridDevice): void {
  for (const type of types) {
    const [m, n, k] = [18, 70, 640];
    const next = randomNumbers(9);
    const packed = packInto(library, madeMatrix(type, n, k, next));
    const x = madeRows(m, k, next);
    const all = multiplyOn(device, packed, x, m, { alpha: 0, tile_rows: 16 });
    for (const tile_rows of tile_rows_choices)
      for (const alpha of [0, 0.5, 1])
        expect(multiplyOn(device, packed, x, m, { alpha, tile_rows })).toEqual(all);
    const row = x.subarray((x.length / m) * 11, (x.length / m) * 12);
    const alone = multiplyOn(device, packed, row, 1, { alpha: 1, tile_rows: 16 });
    expect(alone).toEqual(all.subarray((all.length / m) * 11, (all.length / m) * 12));
    library.freeHost(packed.memory);
  }
}

describe('on an emulated device', () => {
  it('is right for hostile shapes with every M tile and alpha, and writes nothing else', () => {
    const device = emulated.open();
    expectRight(emulated, device, error_max);
    device.close();
  }, 600_000);

  it('gives a row the same bits with any alpha and M tile, alone and among others', () => {
    const device = emulated.open();
    expectSameBits(emulated, device);
    device.close();
  }, 600_000);

  it('reads as many bytes over the link as the decision that chooses alpha counts', () => {
    const slice = { flops_per_s: 1, memory_bytes_per_s: 1, link_bytes_per_s: 1, processors: 4 };
    for (const [type, bytes_per_weight] of [
      ['BF16', 2],
      ['Q8_0', 34 / 32],
    ] as const) {
      const [rows, columns, inner] = [70, 512, 64];
      const packed = packInto(emulated, madeMatrix(type, columns, inner, randomNumbers(3)));
      const x = madeRows(rows, inner, randomNumbers(4));
      for (const tile_rows of [16, 32, 64, 128])
        for (const alpha of [0, 0.25, 0.75, 1]) {
          const device = emulated.open();
          multiplyOn(device, packed, x, rows, { alpha, tile_rows });
          const { link_bytes } = hybridCost(
            { rows, columns, inner, bytes_per_weight },
            { alpha, tile_rows },
            slice,
          );
          expect(device.link_bytes, `${type}, M tile ${tile_rows}, alpha ${alpha}`).toBe(link_bytes);
          device.close();
        }
      emulated.freeHost(packed.memory);
    }
  }, 300_000);

  it('carries scales of any size, and weights that are no numbers into their own columns alone', () => {
    const device = emulated.open();
    const largest = 0x7bff;
    const smallest = 1;
    const [m, n, k] = [3, 40, 128];
    for (const scale of [largest, smallest]) {
      const packed = packInto(
        emulated,
        madeMatrix('Q8_0', n, k, randomNumbers(5), () => scale),
      );
      const x = madeRows(m, k, randomNumbers(6));
      expect(
        errorOf(packed.matrix, x, m, multiplyOn(device, packed, x, m, { alpha: 0, tile_rows: 16 })),
      ).toBeLessThan(error_max);
      emulated.freeHost(packed.memory);
    }
    const infinite = madeMatrix('BF16', n, k, randomNumbers(7), (at) => (at === 5 * k + 9 ? 0x7f80 : 0x3f80));
    const packed = packInto(emulated, infinite);
    const x = madeRows(m, k, randomNumbers(8));
    const y = multiplyOn(device, packed, x, m, { alpha: 1, tile_rows: 16 });
    const width = y.length / m;
    const broken = [...y.keys()].filter((at) => !Number.isFinite(y[at])).map((at) => at % width);
    expect(new Set(broken)).toEqual(new Set([5]));
    device.close();
  });

  it('refuses what it cannot compute, in words', () => {
    const device = emulated.open();
    const memory = emulated.allocateHost(1 << 16);
    const right: HybridMultiplication = {
      ...{ type: packedTypes.BF16 as 30, m: 2, n: 32, k: 64, packed: memory, x: memory, x_stride: 64 },
      ...{ y: memory + 32_768n, y_stride: 32, alpha: 0.5, tile_rows: 16 },
    };
    const refusal = (changed: Partial<Record<keyof HybridMultiplication, unknown>>): string => {
      try {
        device.multiply({ ...right, ...changed } as HybridMultiplication);
      } catch (error) {
        return (error as Error).message;
      }
      return 'done';
    };
    expect(refusal({ type: 2 })).toMatch(/neither BF16 nor Q8_0/);
    expect(refusal({ m: 0 })).toMatch(/a size is below 1/);
    expect(refusal({ type: packedTypes.Q8_0, k: 40, x_stride: 40 })).toMatch(/no multiple of 32/);
    expect(refusal({ alpha: 1.1 })).toMatch(/alpha is not between 0 and 1/);
    expect(refusal({ alpha: Number.NaN })).toMatch(/alpha/);
    expect(refusal({ tile_rows: 48 })).toMatch(/M tile/);
    expect(refusal({ packed: memory + 64n })).toMatch(/multiple of 128/);
    expect(refusal({ x_stride: 63 })).toMatch(/overlap/);
    expect(refusal({})).toBe('done');
    expect(emulated.packedBytes(packedTypes.Q4_0, 32, 64)).toBeUndefined();
    expect(emulated.packedBytes(packedTypes.Q8_0, 33, 64)).toBe(2 * 2176);
    emulated.freeHost(memory);
    device.close();
  });
});

const built = loadHybridGemm();
const lacking =
  built === undefined
    ? ' [skipped: the build found no nvcc]'
    : built.devices === 0
      ? ' [skipped: needs a GPU of NVIDIA’s]'
      : '';

describe.skipIf(lacking !== '')(`on a GPU${lacking}`, () => {
  it('is right for hostile shapes with every M tile and alpha that fits', () => {
    const device = built!.open();
    expectRight(built!, device, error_max_gpu);
    expectSameBits(built!, device);
    device.close();
  }, 300_000);
});
