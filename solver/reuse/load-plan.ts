/**
 * Where the missing tensors of a model go: Tangram's two-stage heuristic (§3.2.2) for Equation 1, minimal-cost
 * eviction and then partitioned-gain packing.
 */
import { type EvictionOrder, evictionOrder, evictionsFor } from './eviction.ts';
import { type PackedSubspace, type PackingSpace, packByPartitionedGain } from './packing.ts';
import { freeBytes, type RegionView } from './region-view.ts';

export interface LoadPlan {
  /** Indices of the regions whose tensors are given up, ascending. */
  evict: number[];
  /** To be carried out in this order, after the evictions: each goes to bytes that are free by then, or its own. */
  moves: PlannedMove[];
  /** Offset in the pool of each wanted tensor. */
  offsets: number[];
  /** The objective of Equation 1, seconds: Σ c of what is evicted + Σ m of what is moved. */
  cost_s: number;
}

export interface PlannedMove {
  /** Index of the region. */
  region: number;
  to_offset: number;
}

export interface PlanningSettings {
  order: EvictionOrder;
  /**
   * How often more space than needed is tried where packing has to move tensors: with each try the evictions beyond
   * the needed ones double. Higher: fewer moves, a longer search; 0 is the paper's heuristic.
   */
  slack_attempts: number;
}

export const defaultPlanningSettings: PlanningSettings = { order: 'density', slack_attempts: 3 };

/**
 * @param regions of the pool, in address order, from offset 0
 * @param wanted bytes of each missing tensor, multiples of the pool's alignment, in the order in which they lie in
 *   the model file: those that come to lie in one block keep it, so that neighbours are read together
 * @returns undefined where the tensors do not fit, whatever is evicted
 */
export function planLoad(
  regions: readonly RegionView[],
  wanted: readonly number[],
  settings: PlanningSettings = defaultPlanningSettings,
): LoadPlan | undefined {
  const sizes = Float64Array.from(wanted);
  const need = sizes.reduce((sum, bytes) => sum + bytes, 0) - freeBytes(regions);
  if (need <= 0) {
    const plan = pack(regions, [], sizes);
    if (plan?.moves.length === 0) return plan;
  }
  const order = evictionOrder(regions, settings.order);
  const least = evictionsFor(regions, order, need);
  if (least === undefined) return undefined;
  let best: LoadPlan | undefined;
  let attempts = 0;
  for (let extra = 0; ; extra = Math.max(1, 2 * extra)) {
    const count = Math.min(order.length, least + extra);
    const plan = pack(regions, order.slice(0, count), sizes);
    if (plan && (!best || plan.cost_s < best.cost_s)) best = plan;
    // A pool that is walled up by tensors in use may need more than the bytes alone say, up to every eviction.
    if (count === order.length) return best;
    if (best && (best.moves.length === 0 || attempts >= settings.slack_attempts)) return best;
    attempts++;
  }
}

/** A free block: where it begins, and the regions up to the next block. */
interface Block {
  offset: number;
  bytes: number;
  /** Index of the first region behind it, and of the first one of the next block. */
  behind: number;
  next: number;
}

function pack(
  regions: readonly RegionView[],
  evicted: readonly number[],
  sizes: Float64Array,
): LoadPlan | undefined {
  const gone = new Uint8Array(regions.length);
  let cost_s = 0;
  for (const index of evicted) {
    gone[index] = 1;
    cost_s += (regions[index] as { evict_cost_s: number }).evict_cost_s;
  }
  const { blocks, space } = blocksOf(regions, gone);
  const packed = packByPartitionedGain(space, sizes);
  if (!packed) return undefined;
  const plan: LoadPlan = { evict: [], moves: [], offsets: new Array(sizes.length).fill(0), cost_s };
  const written = packed.map((subspace) => layOut(subspace, { regions, blocks, sizes, gone, plan }));
  spareUntouched(regions, gone, written, plan);
  for (let index = 0; index < gone.length; index++) if (gone[index]) plan.evict.push(index);
  return plan;
}

function blocksOf(
  regions: readonly RegionView[],
  gone: Uint8Array,
): { blocks: Block[]; space: PackingSpace } {
  const blocks: Block[] = [];
  const obstacles: number[] = [];
  let offset = 0;
  let block: Block | undefined;
  let obstacle = 0;
  for (let index = 0; index < regions.length; index++) {
    const region = regions[index]!;
    if (region.kind === 'free' || gone[index]) {
      if (block && block.behind === index) {
        block.bytes += region.bytes;
        block.behind = index + 1;
      } else {
        if (block) {
          block.next = index;
          obstacles.push(obstacle);
        }
        block = { offset, bytes: region.bytes, behind: index + 1, next: regions.length };
        blocks.push(block);
        obstacle = 0;
      }
    } else obstacle += region.kind === 'fixed' ? Number.POSITIVE_INFINITY : clearingCost(region);
    offset += region.bytes;
  }
  return {
    blocks,
    space: {
      blocks: Float64Array.from(blocks, ({ bytes }) => bytes),
      obstacles: Float64Array.from(obstacles),
    },
  };
}

/** y + z ≤ 1 of Equation 1: what is in the way is evicted or moved, whichever costs less. */
function clearingCost(region: { evict_cost_s: number; move_cost_s: number }): number {
  return Math.min(region.evict_cost_s, region.move_cost_s);
}

interface Range {
  begin: number;
  end: number;
}

/** Evictions come in whole tensors, so that some may turn out to free bytes that nothing was put on: they stay. */
function spareUntouched(
  regions: readonly RegionView[],
  gone: Uint8Array,
  written: Range[],
  plan: LoadPlan,
): void {
  written.sort((a, b) => a.begin - b.begin);
  let next = 0;
  let offset = 0;
  for (let index = 0; index < regions.length; index++) {
    const region = regions[index]!;
    while (next < written.length && written[next]!.end <= offset) next++;
    const range = written[next];
    const touched = range !== undefined && range.begin < offset + region.bytes;
    offset += region.bytes;
    if (!gone[index] || touched || region.kind !== 'resident') continue;
    gone[index] = 0;
    plan.cost_s -= region.evict_cost_s;
  }
}

/**
 * Moves what lies inside a subspace to its beginning; the new tensors follow, in their own order.
 * @returns the bytes of the pool that are written
 */
function layOut(
  { first_block, last_block, tensors }: PackedSubspace,
  context: {
    regions: readonly RegionView[];
    blocks: readonly Block[];
    sizes: Float64Array;
    gone: Uint8Array;
    plan: LoadPlan;
  },
): Range {
  const { regions, blocks, sizes, gone, plan } = context;
  const begin = blocks[first_block]!.offset;
  let offset = begin;
  for (let block = first_block; block < last_block; block++) {
    const { behind, next } = blocks[block]!;
    for (let index = behind; index < next; index++) {
      const region = regions[index]!;
      if (region.kind !== 'resident')
        throw new Error(`region ${index} is ${region.kind} and was to be cleared`);
      plan.cost_s += clearingCost(region);
      if (region.evict_cost_s < region.move_cost_s) gone[index] = 1;
      else {
        plan.moves.push({ region: index, to_offset: offset });
        offset += region.bytes;
      }
    }
  }
  for (const tensor of tensors.slice().sort()) {
    plan.offsets[tensor] = offset;
    offset += sizes[tensor]!;
  }
  return { begin, end: offset };
}
