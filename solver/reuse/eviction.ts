/**
 * Minimal-cost eviction: the first stage of Tangram's loading heuristic (§3.2.2). It frees enough bytes for the
 * tensors that are missing, and gives up what is least likely to be missed.
 */
import { type RegionColumns, regionKinds } from './region-view.ts';

/** What a model adds to the eviction cost of its tensors. */
export interface EvictionWeight {
  /** p: probability that the model is asked for and misses the tensor. */
  probability: number;
  /** b: bytes per second at which the model's tensors load. */
  load_bandwidth: number;
  /** α: how much a second of loading matters; 1 where model.yaml says nothing. */
  latency_sensitivity: number;
}

/** Equation 2, c = p · (s / b) · α, in seconds; a tensor that several models share costs each of them. */
export function evictionCost(bytes: number, models: readonly EvictionWeight[]): number {
  let cost = 0;
  for (const { probability, load_bandwidth, latency_sensitivity } of models)
    cost += probability * (bytes / load_bandwidth) * latency_sensitivity;
  return cost;
}

/**
 * - `density`: by cost per byte. Equation 1 minimises the summed cost of a set that must reach a number of bytes,
 *   which is a covering knapsack: its greedy goes by cost per byte. Tensors of one model have one density, so that
 *   whole models go, in the order of their addresses, and leave contiguous space.
 * - `cost`: by the cost of each tensor, as the paper's sentence reads. Small tensors of all models go first, and
 *   leave holes everywhere.
 */
export type EvictionOrder = 'density' | 'cost';

/** Indices of the resident regions, those to be evicted first in front; neighbours in address order among equals. */
export function evictionOrder(regions: RegionColumns, order: EvictionOrder = 'density'): number[] {
  const { count, kinds, bytes, evict_cost_s } = regions;
  // A model has few densities and a pool few models: sorting the distinct keys is faster than sorting regions.
  const buckets = new Map<number, number[]>();
  // Neighbours are mostly of one model.
  let last_key = Number.NaN;
  let last: number[] = [];
  for (let index = 0; index < count; index++) {
    if (kinds[index] !== regionKinds.resident) continue;
    const cost_s = evict_cost_s[index]!;
    const key = order === 'cost' ? cost_s : Math.fround(cost_s / bytes[index]!);
    if (key !== last_key) {
      last_key = key;
      last = buckets.get(key) ?? [];
      if (last.length === 0) buckets.set(key, last);
    }
    last.push(index);
  }
  const ordered: number[] = [];
  for (const key of Float64Array.from(buckets.keys()).sort()) {
    const bucket = buckets.get(key)!;
    for (let index = 0; index < bucket.length; index++) ordered.push(bucket[index]!);
  }
  return ordered;
}

/**
 * How many of `order` must go so that at least `need_bytes` become free.
 * @returns undefined where all of them are not enough.
 */
export function evictionsFor(
  { bytes }: RegionColumns,
  order: readonly number[],
  need_bytes: number,
): number | undefined {
  let freed = 0;
  let count = 0;
  while (freed < need_bytes) {
    const index = order[count];
    if (index === undefined) return undefined;
    freed += bytes[index]!;
    count++;
  }
  return count;
}
