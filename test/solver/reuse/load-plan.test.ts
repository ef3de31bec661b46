import { describe, expect, it } from 'vitest';
import { defaultPlanningSettings, type LoadPlan, planLoad } from '../../../solver/reuse/load-plan.ts';
import { Packer } from '../../../solver/reuse/packing.ts';
import type { RegionView } from '../../../solver/reuse/region-view.ts';
import { seededRandom } from '../../../solver/simulator/random.ts';
import { carryOut, leastCost } from './judge.ts';

/** A tensor that costs far more to load again than to move. */
const resident = (bytes: number, evict_cost_s = 100 * bytes, move_cost_s = bytes): RegionView => ({
  kind: 'resident',
  bytes,
  evict_cost_s,
  move_cost_s,
});
const free = (bytes: number): RegionView => ({ kind: 'free', bytes });
const fixed = (bytes: number): RegionView => ({ kind: 'fixed', bytes });

function planOf(regions: readonly RegionView[], wanted: readonly number[]): LoadPlan {
  const plan = planLoad(regions, wanted, defaultPlanningSettings);
  if (!plan) throw new Error('there is no plan');
  const counted = carryOut(regions, wanted, plan);
  expect(plan.cost_s).toBeCloseTo(counted.cost_s, 9);
  return plan;
}

interface Instance {
  regions: RegionView[];
  wanted: number[];
}

function instances(count: number, seed: number): Instance[] {
  const random = seededRandom(seed);
  const below = (limit: number): number => Math.floor(limit * random());
  return Array.from({ length: count }, () => {
    const regions: RegionView[] = [];
    for (let index = 4 + below(7); index > 0; index--) {
      const kind = random();
      const bytes = 1 + below(8);
      if (kind < 0.35 && regions.at(-1)?.kind !== 'free') regions.push(free(bytes));
      else if (kind > 0.93) regions.push(fixed(bytes));
      else regions.push(resident(bytes, [0.05, 0.2, 0.5][below(3)]! * bytes, 0.3 * bytes));
    }
    return { regions, wanted: Array.from({ length: 1 + below(4) }, () => 1 + below(6)) };
  });
}

describe('a load plan', () => {
  it('moves and evicts nothing where the tensors fit as the pool is', () => {
    const plan = planOf([free(4), resident(3), free(6), fixed(2), free(3)], [3, 6, 2]);
    expect(plan).toMatchObject({ evict: [], moves: [], cost_s: 0 });
  });

  it('merges around the cheaper tensor where no block is large enough (Figure 6)', () => {
    // Partition points of gains 1 and 3: splitting at 3 leaves a merge cost of 1.
    const plan = planOf([free(3), resident(1), free(2), resident(3), free(3)], [5, 3]);
    expect(plan.evict).toEqual([]);
    expect(plan.moves.map(({ region }) => region)).toEqual([1]);
    expect(plan.cost_s).toBe(1);
  });

  it('packs a tensor that fits the roomier side only, which the listing of Algorithm 1 refuses', () => {
    const space = { blocks: Float64Array.of(8, 2), obstacles: Float64Array.of(5) };
    expect(new Packer(Float64Array.of(4), 2).pack(space)).toEqual([
      { first_block: 0, last_block: 0, tensors: [0] },
    ]);
  });

  it('does not count tensors that stay as capacity', () => {
    expect(planLoad([free(3), fixed(9), free(3)], [4])).toBeUndefined();
  });

  it('gives up what costs least per byte, and only as much as is needed', () => {
    const regions = [resident(4, 8), resident(4, 1), resident(4, 1), resident(4, 4)];
    expect(planOf(regions, [3]).evict).toEqual([1]);
    expect(planOf(regions, [8]).evict).toEqual([1, 2]);
    expect(planOf(regions, [9]).evict).toEqual([1, 2, 3]);
  });

  it('evicts rather than moves what is hardly ever used', () => {
    const plan = planOf([free(3), resident(2, 0.1), free(3), resident(9)], [7]);
    expect(plan).toMatchObject({ evict: [1], moves: [] });
  });

  it('keeps what it evicted for nothing', () => {
    // By bytes alone the first tensor has to go; the second is large enough for everything.
    const plan = planOf([resident(1, 0.1), fixed(1), resident(6, 3, 100)], [5]);
    expect(plan.evict).toEqual([2]);
  });

  it('lays the tensors of one block in the order of the file, so that neighbours are read together', () => {
    const plan = planOf([free(20)], [2, 5, 1, 4]);
    expect(plan.offsets).toEqual([0, 2, 7, 8]);
  });

  it('finds a way around tensors in use, with more evictions than the bytes need', () => {
    const plan = planOf([free(2), fixed(1), free(2), resident(3, 1), fixed(1), free(2)], [5]);
    expect(plan.evict).toEqual([3]);
  });

  it('says no where even an empty pool is too small', () => {
    expect(planLoad([resident(5), free(4)], [10])).toBeUndefined();
    expect(planLoad([fixed(5), free(4)], [5])).toBeUndefined();
  });

  it('is legal, costs what it says, and stays near the exact optimum of small instances', () => {
    let ours = 0;
    let best = 0;
    let paper = 0;
    let solvable = 0;
    let missed = 0;
    for (const { regions, wanted } of instances(400, 11)) {
      const exact = leastCost(regions, wanted);
      const plan = planLoad(regions, wanted);
      if (exact === undefined) expect(plan).toBeUndefined();
      if (exact === undefined) continue;
      solvable++;
      if (!plan) missed++;
      if (!plan) continue;
      const { cost_s } = carryOut(regions, wanted, plan);
      expect(cost_s).toBeCloseTo(plan.cost_s, 9);
      expect(cost_s).toBeGreaterThanOrEqual(exact - 1e-9);
      ours += cost_s;
      best += exact;
      paper += planLoad(regions, wanted, { order: 'cost', slack_attempts: 0 })?.cost_s ?? 0;
    }
    expect(solvable).toBeGreaterThan(300);
    expect(missed / solvable).toBeLessThan(0.01);
    expect(ours / best).toBeLessThan(1.25);
    expect(ours).toBeLessThan(paper);
  });
});
