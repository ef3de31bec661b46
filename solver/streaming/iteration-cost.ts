/**
 * What one iteration of a model asks of a slice: arithmetic and device memory, and bytes over the link. Layers are
 * prefetched, so the copies of one overlap with the arithmetic of another, and an iteration takes the longer of both.
 */
import type { HybridSetting, Product, SliceFigures } from './hybrid-product.ts';
import { chooseKernel, fixedKernel, type StreamedKernel } from './kernel-choice.ts';
import type { ModelProduct, StreamedModel } from './model-products.ts';

export interface IterationRows {
  /** Decoding sequences and input tokens. */
  rows: number;
  /** Rows that sample a token. */
  sampled: number;
}

/** Share of the weights that lies on the device. */
export interface ResidentShares {
  dense: number;
  experts: number;
}

/** `chosen`: by shape and link; else one setting for all products. */
export type StreamedKernelPolicy = 'chosen' | HybridSetting;

export interface IterationCost {
  compute_s: number;
  /** Of activations and partial sums; weights that lie on the device are read beside. */
  memory_s: number;
  /** Over the link, were nothing resident: what is read again crosses again. */
  dense_link_bytes: number;
  expert_link_bytes: number;
  /** Weights that are read, each once. */
  dense_bytes: number;
  expert_bytes: number;
}

/** Of all products of an iteration. Routing is taken as even: experts are read by chance. */
export function iterationCost(
  model: StreamedModel,
  { rows, sampled }: IterationRows,
  slice: SliceFigures,
  policy: StreamedKernelPolicy,
): IterationCost {
  const total = {
    compute_s: 0,
    memory_s: 0,
    dense_link_bytes: 0,
    expert_link_bytes: 0,
    dense_bytes: 0,
    expert_bytes: 0,
  };
  for (const product of model.products) {
    const own = product.sampled_rows ? sampled : rows;
    if (own === 0) continue;
    const { groups, rows_per_group } = grouped(product, own);
    const { cost } = productChoice({ ...product, rows: rows_per_group }, slice, policy);
    const times = groups * product.count;
    const weight_bytes = times * product.columns * product.inner * product.bytes_per_weight;
    total.compute_s += times * cost.compute_s;
    total.memory_s += (times * cost.device_bytes) / slice.memory_bytes_per_s;
    total[product.experts ? 'expert_link_bytes' : 'dense_link_bytes'] += times * cost.link_bytes;
    total[product.experts ? 'expert_bytes' : 'dense_bytes'] += weight_bytes;
  }
  return total;
}

/** Bytes that cross the link with so much resident. */
export function linkTraffic_bytes(cost: IterationCost, resident: ResidentShares): number {
  return cost.dense_link_bytes * (1 - resident.dense) + cost.expert_link_bytes * (1 - resident.experts);
}

/** What it takes but for the link: weights that lie on the device are read from its memory. */
export function busyTime_s(
  cost: IterationCost,
  resident: ResidentShares,
  memory_bytes_per_s: number,
): number {
  const resident_bytes = cost.dense_bytes * resident.dense + cost.expert_bytes * resident.experts;
  return Math.max(cost.compute_s, cost.memory_s + resident_bytes / memory_bytes_per_s);
}

/** How long it takes at the rate of the slice's link. */
export function iterationTime_s(cost: IterationCost, resident: ResidentShares, slice: SliceFigures): number {
  return Math.max(
    busyTime_s(cost, resident, slice.memory_bytes_per_s),
    linkTraffic_bytes(cost, resident) / slice.link_bytes_per_s,
  );
}

/** Of `count` experts each is hit by a row with probability used/count. */
function grouped({ experts }: ModelProduct, rows: number): { groups: number; rows_per_group: number } {
  if (!experts) return { groups: 1, rows_per_group: rows };
  const groups = experts.count * (1 - (1 - experts.used_per_token / experts.count) ** rows);
  return { groups, rows_per_group: Math.max(1, Math.round((rows * experts.used_per_token) / groups)) };
}

function productChoice(product: Product, slice: SliceFigures, policy: StreamedKernelPolicy): StreamedKernel {
  if (policy !== 'chosen') return fixedKernel(product, policy, slice);
  // A layer is staged beside the one that computes, so that there is room for any of its products.
  return chooseKernel(product, slice, { arena_bytes: Number.POSITIVE_INFINITY });
}
