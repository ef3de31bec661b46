import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import {
  bestAlpha,
  bestHybrid,
  hybridCost,
  type Product,
  productTime_s,
  type SliceFigures,
  tile_rows_choices,
} from '../../../solver/streaming/hybrid-product.ts';
import { chooseKernel, fixedKernel } from '../../../solver/streaming/kernel-choice.ts';

/** A seventh of a GH200: 1g.12gb. */
const slice: SliceFigures = {
  flops_per_s: 100e12,
  memory_bytes_per_s: 400e9,
  link_bytes_per_s: 100e9,
  processors: 16,
};
const up = (rows: number): Product => ({ rows, columns: 28_672, inner: 4096, bytes_per_weight: 2 });

const products = fc.record({
  rows: fc.integer({ min: 1, max: 4096 }),
  columns: fc.integer({ min: 64, max: 32_768 }),
  inner: fc.integer({ min: 64, max: 16_384 }),
  bytes_per_weight: fc.constantFrom(0.5, 1, 2),
});
const slices = fc.record({
  flops_per_s: fc.double({ min: 1e12, max: 1e15, noNaN: true }),
  memory_bytes_per_s: fc.double({ min: 1e11, max: 4e12, noNaN: true }),
  link_bytes_per_s: fc.double({ min: 1e9, max: 5e11, noNaN: true }),
  processors: fc.integer({ min: 1, max: 132 }),
});

const grid = Array.from({ length: 201 }, (_, index) => index / 200);

describe('a product with weights in host memory', () => {
  it('reads weights once for each tile of rows, or once, and pays in device memory for that', () => {
    const tiled = hybridCost(up(512), { alpha: 0, tile_rows: 64 }, slice);
    const stationary = hybridCost(up(512), { alpha: 1, tile_rows: 64 }, slice);
    const weight_bytes = 28_672 * 4096 * 2;
    expect(tiled.link_bytes).toBe(8 * weight_bytes);
    expect(stationary.link_bytes).toBe(weight_bytes);
    // Eight panels along the inner extent: seven times partial sums are written and read again.
    expect(stationary.device_bytes - tiled.device_bytes).toBe(512 * 28_672 * 4 * 2 * 7);
  });

  it('has an α that no other beats, held against a grid', () => {
    fc.assert(
      fc.property(products, slices, fc.constantFrom(...tile_rows_choices), (product, own, tile_rows) => {
        const time = (alpha: number): number =>
          productTime_s(hybridCost(product, { alpha, tile_rows }, own), own);
        const best_s = time(bestAlpha(product, tile_rows, own));
        for (const alpha of grid) expect(best_s).toBeLessThanOrEqual(time(alpha) * (1 + 1e-9));
      }),
      { numRuns: 200 },
    );
  });

  it('leaves as much of the link to neighbours as costs no time', () => {
    fc.assert(
      fc.property(products, slices, (product, own) => {
        const best = bestHybrid(product, own);
        const best_s = productTime_s(best.cost, own);
        for (const tile_rows of tile_rows_choices)
          for (const alpha of grid) {
            const other = hybridCost(product, { alpha, tile_rows }, own);
            expect(best_s).toBeLessThanOrEqual(productTime_s(other, own) * (1 + 1e-9));
            if (productTime_s(other, own) <= best_s * (1 + 1e-12))
              expect(best.cost.link_bytes).toBeLessThanOrEqual(other.link_bytes * (1 + 1e-6));
          }
      }),
      { numRuns: 100 },
    );
  });

  it('takes a larger α where the link is slower', () => {
    const alphas = [200e9, 100e9, 50e9, 25e9].map((link_bytes_per_s) =>
      bestAlpha(up(512), 64, { ...slice, link_bytes_per_s }),
    );
    expect(alphas).toEqual([...alphas].sort((a, b) => a - b));
    expect(alphas.at(-1)!).toBeGreaterThan(alphas[0]!);
  });

  it('is bound by the link for few rows, and by arithmetic for many', () => {
    const few = bestHybrid(up(4), slice).cost;
    expect(few.link_bytes / slice.link_bytes_per_s).toBeGreaterThan(10 * few.compute_s);
    const many = chooseKernel(up(4096), slice, { arena_bytes: Number.POSITIVE_INFINITY });
    expect(many.seconds).toBeLessThan(1.3 * many.cost.compute_s);
  });
});

describe('the kernel', () => {
  it('is the one of host memory for few rows, and a copy in the arena for many', () => {
    const arena = { arena_bytes: 2 ** 30 };
    expect(chooseKernel(up(1), slice, arena).kernel).toBe('hybrid');
    expect(chooseKernel(up(2048), slice, arena).kernel).toBe('staged');
  });

  it('needs no arena that is not there', () => {
    for (const rows of [1, 64, 2048])
      expect(chooseKernel(up(rows), slice, { arena_bytes: 1e6 }).kernel).toBe('hybrid');
  });

  it('is never slower than a fixed one', () => {
    fc.assert(
      fc.property(
        products,
        slices,
        fc.constantFrom(...tile_rows_choices),
        fc.constantFrom(0, 0.5, 1),
        (product, own, tile_rows, alpha) => {
          const chosen = chooseKernel(product, own, { arena_bytes: Number.POSITIVE_INFINITY });
          const fixed = fixedKernel(product, { alpha, tile_rows }, own);
          expect(chosen.seconds).toBeLessThanOrEqual(fixed.seconds * (1 + 1e-9));
        },
      ),
      { numRuns: 200 },
    );
  });
});
