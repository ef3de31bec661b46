import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { planReclaim, reclaimableRanges } from '../../../solver/reuse/reclaim.ts';
import type { RegionView } from '../../../solver/reuse/region-view.ts';

const free = (bytes: number): RegionView => ({ kind: 'free', bytes });
const fixed = (bytes: number): RegionView => ({ kind: 'fixed', bytes });
const resident = (bytes: number, evict_cost_s: number): RegionView => ({
  kind: 'resident',
  bytes,
  evict_cost_s,
  move_cost_s: 0,
});

/** Every range at every aligned offset, one after the other. */
function cheapest(regions: readonly RegionView[], bytes: number, alignment: number): number | undefined {
  const total = regions.reduce((sum, region) => sum + region.bytes, 0);
  let best: number | undefined;
  for (let offset = 0; offset + bytes <= total; offset += alignment) {
    let begin = 0;
    let cost = 0;
    for (const region of regions) {
      const touched = begin < offset + bytes && begin + region.bytes > offset;
      if (touched && region.kind === 'fixed') cost = Number.POSITIVE_INFINITY;
      if (touched && region.kind === 'resident') cost += region.evict_cost_s;
      begin += region.bytes;
    }
    if (cost < (best ?? Number.POSITIVE_INFINITY)) best = cost;
  }
  return best;
}

describe('urgent reclaim', () => {
  it('takes the cheapest contiguous range, free bytes at its ends included', () => {
    const regions = [resident(4, 9), free(2), resident(2, 1), fixed(1), resident(4, 2)];
    expect(planReclaim(regions, 4, 1)).toEqual({ evict: [2], offset: 4 });
    expect(planReclaim(regions, 5, 1)).toEqual({ evict: [0], offset: 0 });
    expect(planReclaim(regions, 9, 1)).toBeUndefined();
  });

  it('gives nothing up where a free range is large enough', () => {
    expect(planReclaim([resident(4, 0.1), free(8)], 8, 4)).toEqual({ evict: [], offset: 4 });
  });

  it('begins at multiples of the alignment', () => {
    expect(planReclaim([fixed(1), free(8)], 4, 4)).toEqual({ evict: [], offset: 4 });
    expect(planReclaim([fixed(1), free(6)], 4, 4)).toBeUndefined();
  });

  it('is as cheap as any range, by exhaustion', () => {
    const region = fc.oneof(
      fc.integer({ min: 1, max: 9 }).map(free),
      fc.integer({ min: 1, max: 4 }).map(fixed),
      fc
        .tuple(fc.integer({ min: 1, max: 9 }), fc.integer({ min: 1, max: 20 }))
        .map(([b, c]) => resident(b, c)),
    );
    const plan = fc.record({
      regions: fc.array(region, { minLength: 1, maxLength: 12 }),
      bytes: fc.integer({ min: 1, max: 12 }),
      alignment: fc.constantFrom(1, 2, 4),
    });
    fc.assert(
      fc.property(plan, ({ regions, bytes, alignment }) => {
        const found = planReclaim(regions, bytes, alignment);
        const best = cheapest(regions, bytes, alignment);
        expect(found === undefined).toBe(best === undefined);
        if (best === undefined) return;
        expect(found!.offset % alignment).toBe(0);
        const cost = found!.evict.reduce((sum, index) => {
          const evicted = regions[index]!;
          return sum + (evicted.kind === 'resident' ? evicted.evict_cost_s : Number.NaN);
        }, 0);
        expect(cost).toBeCloseTo(best, 9);
        expect(reclaimableRanges(regions, bytes, alignment)).toBeGreaterThan(0);
      }),
      { numRuns: 500 },
    );
  });

  it('counts the ranges that fit side by side between what must stay', () => {
    expect(reclaimableRanges([free(3), resident(6, 1), fixed(1), free(4)], 4, 1)).toBe(3);
    expect(reclaimableRanges([fixed(1), free(3), resident(6, 1)], 4, 4)).toBe(1);
    expect(reclaimableRanges([fixed(9)], 4, 1)).toBe(0);
  });
});
