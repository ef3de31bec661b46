/**
 * Urgent reclaim (Tangram §3.3): a contiguous range for KV blocks, made by giving up tensors that nobody uses. Nothing
 * is moved: a decode step waits for it.
 */
import type { RegionView } from './region-view.ts';

export interface ReclaimPlan {
  /** Indices of the regions whose tensors are given up, ascending. */
  evict: number[];
  /** Where the range begins. */
  offset: number;
}

/**
 * The range of `bytes` at a multiple of `alignment` that costs least by Equation 2.
 * @param regions of the pool, in address order, from offset 0
 * @returns undefined where what must stay leaves none
 */
export function planReclaim(
  regions: readonly RegionView[],
  bytes: number,
  alignment: number,
): ReclaimPlan | undefined {
  let best: (ReclaimPlan & { cost_s: number }) | undefined;
  let begin = 0;
  for (let first = 0; first < regions.length; begin += regions[first]!.bytes, first++) {
    if (regions[first]!.kind === 'fixed') continue;
    const offset = Math.ceil(begin / alignment) * alignment;
    if (offset >= begin + regions[first]!.bytes) continue;
    const plan = rangeFrom(regions, first, begin, offset + bytes);
    if (plan && (!best || plan.cost_s < best.cost_s)) best = { ...plan, offset };
    if (best?.cost_s === 0) break;
  }
  return best && { evict: best.evict, offset: best.offset };
}

function rangeFrom(
  regions: readonly RegionView[],
  first: number,
  begin: number,
  end: number,
): { evict: number[]; cost_s: number } | undefined {
  const evict: number[] = [];
  let cost_s = 0;
  let reached = begin;
  for (let index = first; reached < end; index++) {
    const region = regions[index];
    if (region === undefined || region.kind === 'fixed') return undefined;
    if (region.kind === 'resident') {
      evict.push(index);
      cost_s += region.evict_cost_s;
    }
    reached += region.bytes;
  }
  return { evict, cost_s };
}

/** How many such ranges there would be side by side if everything were given up that nobody uses. */
export function reclaimableRanges(regions: readonly RegionView[], bytes: number, alignment: number): number {
  let count = 0;
  let offset = 0;
  let begin: number | undefined;
  const close = (end: number): void => {
    if (begin !== undefined) {
      const stride = Math.ceil(bytes / alignment) * alignment;
      const start = Math.ceil(begin / alignment) * alignment;
      if (end - start >= bytes) count += Math.floor((end - start - bytes) / stride) + 1;
    }
    begin = undefined;
  };
  for (const region of regions) {
    if (region.kind === 'fixed') close(offset);
    else begin ??= offset;
    offset += region.bytes;
  }
  close(offset);
  return count;
}
