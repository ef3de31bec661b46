/** What judges a plan: the pool's rules, the objective counted again, and the best plan of a small instance. */
import type { LoadPlan } from '../../../solver/reuse/load-plan.ts';
import type { RegionView } from '../../../solver/reuse/region-view.ts';

/**
 * Carries a plan out on a pool of one byte a byte and counts what it costs.
 * @returns the objective of Equation 1 and the bytes that were moved
 * @throws Error where the plan overwrites something, leaves the pool, or loses a tensor
 */
export function carryOut(
  regions: readonly RegionView[],
  wanted: readonly number[],
  plan: LoadPlan,
): { cost_s: number; moved_bytes: number } {
  const pool: number[] = [];
  const starts: number[] = [];
  regions.forEach((region, index) => {
    starts.push(pool.length);
    for (let byte = 0; byte < region.bytes; byte++) pool.push(region.kind === 'free' ? -1 : index);
  });
  const put = (offset: number, bytes: number, owner: number): void => {
    for (let byte = offset; byte < offset + bytes; byte++) {
      if (pool[byte] !== -1) throw new Error(`byte ${byte} is not free: it holds ${pool[byte]}`);
      pool[byte] = owner;
    }
  };
  let cost_s = 0;
  let moved_bytes = 0;
  const lift = (index: number): number => {
    const region = regions[index]!;
    if (region.kind !== 'resident') throw new Error(`region ${index} is ${region.kind}`);
    for (let byte = starts[index]!; byte < starts[index]! + region.bytes; byte++) {
      if (pool[byte] !== index) throw new Error(`region ${index} is not where it was`);
      pool[byte] = -1;
    }
    return region.bytes;
  };
  for (const index of plan.evict) {
    lift(index);
    cost_s += (regions[index] as { evict_cost_s: number }).evict_cost_s;
  }
  for (const { region, to_offset } of plan.moves) {
    const bytes = lift(region);
    put(to_offset, bytes, region);
    cost_s += (regions[region] as { move_cost_s: number }).move_cost_s;
    moved_bytes += bytes;
  }
  wanted.forEach((bytes, index) => {
    put(plan.offsets[index]!, bytes, regions.length + index);
  });
  return { cost_s, moved_bytes };
}

/**
 * The least cost over every choice of keeping, evicting or moving each tensor, with an exact packing of what is moved
 * and new into the gaps between what is kept. Exponential: for a dozen regions.
 * @returns undefined where no choice makes room
 */
export function leastCost(regions: readonly RegionView[], wanted: readonly number[]): number | undefined {
  const residents = regions.flatMap((region, index) => (region.kind === 'resident' ? [index] : []));
  let best: number | undefined;
  const stays = new Array<boolean>(regions.length).fill(true);
  const choose = (at: number, cost: number, items: number[]): void => {
    if (best !== undefined && cost >= best) return;
    if (at === residents.length) {
      const sorted = [...items].sort((a, b) => b - a);
      if (fits(sorted, 0, gapsOf(regions, stays))) best = cost;
      return;
    }
    const index = residents[at]!;
    const region = regions[index]!;
    if (region.kind !== 'resident') return;
    choose(at + 1, cost, items);
    stays[index] = false;
    choose(at + 1, cost + region.evict_cost_s, items);
    choose(at + 1, cost + region.move_cost_s, [...items, region.bytes]);
    stays[index] = true;
  };
  choose(0, 0, [...wanted]);
  return best;
}

function gapsOf(regions: readonly RegionView[], stays: readonly boolean[]): number[] {
  const gaps = [0];
  regions.forEach((region, index) => {
    if (region.kind === 'free' || !stays[index]) gaps[gaps.length - 1]! += region.bytes;
    else gaps.push(0);
  });
  return gaps;
}

function fits(items: readonly number[], at: number, gaps: number[]): boolean {
  if (at === items.length) return true;
  const bytes = items[at]!;
  const tried = new Set<number>();
  for (let gap = 0; gap < gaps.length; gap++) {
    if (gaps[gap]! < bytes || tried.has(gaps[gap]!)) continue;
    tried.add(gaps[gap]!);
    gaps[gap]! -= bytes;
    const done = fits(items, at + 1, gaps);
    gaps[gap]! += bytes;
    if (done) return true;
  }
  return false;
}
