/**
 * Where the missing tensors of a model go: Tangram's two-stage heuristic (§3.2.2) for Equation 1, minimal-cost
 * eviction and then partitioned-gain packing.
 */
import { type EvictionOrder, evictionOrder, evictionsFor } from './eviction.ts';
import { type PackedSubspace, Packer, type PackingSpace } from './packing.ts';
import { columnsOf, type RegionColumns, type RegionView, regionKinds } from './region-view.ts';

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
  const columns = columnsOf(regions);
  const need = sizes.reduce((sum, bytes) => sum + bytes, 0) - columns.free_bytes;
  const planner = new Planner(columns, sizes);
  const without_evictions = need <= 0 ? planner.pack([], 0) : undefined;
  if (without_evictions?.moves.length === 0) return without_evictions;
  const order = evictionOrder(columns, settings.order);
  const least = evictionsFor(columns, order, need);
  if (least === undefined) return undefined;
  let best: LoadPlan | undefined;
  let attempts = 0;
  for (let extra = 0; ; extra = Math.max(1, 2 * extra)) {
    const count = Math.min(order.length, least + extra);
    const plan = count === 0 ? without_evictions : planner.pack(order, count);
    if (plan && (!best || plan.cost_s < best.cost_s)) best = plan;
    // A pool that is walled up by tensors in use may need more than the bytes alone say, up to every eviction.
    if (count === order.length) return best;
    if (best && (best.moves.length === 0 || attempts >= settings.slack_attempts)) return best;
    attempts++;
  }
}

interface Range {
  begin: number;
  end: number;
}

/** One pool and one model, packed again and again with more evicted each time. Arrays are used again. */
class Planner {
  readonly #regions: RegionColumns;
  /** Per region, y + z ≤ 1 of Equation 1: what is in the way is evicted or moved, whichever costs less. */
  readonly #clear_cost_s: Float64Array;
  readonly #gone: Uint8Array;
  readonly #sizes: Float64Array;
  readonly #packer: Packer;
  /** Free blocks: the bytes of each, its first region, the one behind it, and what lies between it and the next. */
  readonly #blocks: Float64Array;
  readonly #first: Int32Array;
  readonly #behind: Int32Array;
  readonly #obstacles: Float64Array;

  constructor(regions: RegionColumns, sizes: Float64Array) {
    const { count, kinds, evict_cost_s, move_cost_s } = regions;
    this.#regions = regions;
    this.#sizes = sizes;
    this.#packer = new Packer(sizes, count);
    this.#gone = new Uint8Array(count);
    this.#blocks = new Float64Array(count);
    this.#first = new Int32Array(count);
    this.#behind = new Int32Array(count);
    this.#obstacles = new Float64Array(count);
    this.#clear_cost_s = new Float64Array(count);
    for (let index = 0; index < count; index++)
      this.#clear_cost_s[index] =
        kinds[index] === regionKinds.fixed
          ? Number.POSITIVE_INFINITY
          : Math.min(evict_cost_s[index]!, move_cost_s[index]!);
  }

  /** @param count of `order`, so many are evicted */
  pack(order: readonly number[], count: number): LoadPlan | undefined {
    const gone = this.#gone;
    gone.fill(0);
    let cost_s = 0;
    for (let at = 0; at < count; at++) {
      const index = order[at]!;
      gone[index] = 1;
      cost_s += this.#regions.evict_cost_s[index]!;
    }
    const packed = this.#packer.pack(this.#space());
    if (!packed) return undefined;
    const offsets = new Array<number>(this.#sizes.length).fill(0);
    const plan: LoadPlan = { evict: [], moves: [], offsets, cost_s };
    const written = packed.map((subspace) => this.#layOut(subspace, plan));
    this.#evict(written, plan);
    return plan;
  }

  #space(): PackingSpace {
    const { count, kinds, bytes } = this.#regions;
    const gone = this.#gone;
    const clear_cost_s = this.#clear_cost_s;
    const blocks = this.#blocks;
    const obstacles = this.#obstacles;
    const firsts = this.#first;
    const behinds = this.#behind;
    let block = -1;
    let behind = -1;
    let block_bytes = 0;
    let obstacle = 0;
    for (let index = 0; index < count; index++) {
      if (kinds[index] !== regionKinds.free && gone[index] === 0) {
        obstacle += clear_cost_s[index]!;
        continue;
      }
      if (behind === index) block_bytes += bytes[index]!;
      else {
        if (block >= 0) {
          behinds[block] = behind;
          blocks[block] = block_bytes;
          obstacles[block] = obstacle;
        }
        block++;
        firsts[block] = index;
        block_bytes = bytes[index]!;
        obstacle = 0;
      }
      behind = index + 1;
    }
    if (block >= 0) {
      behinds[block] = behind;
      blocks[block] = block_bytes;
    }
    return { blocks: blocks.subarray(0, block + 1), obstacles: obstacles.subarray(0, Math.max(0, block)) };
  }

  /**
   * Moves what lies inside a subspace to its beginning; the new tensors follow, in their own order.
   * @returns the bytes of the pool that are written
   */
  #layOut({ first_block, last_block, tensors }: PackedSubspace, plan: LoadPlan): Range {
    const { kinds, offsets, bytes, evict_cost_s, move_cost_s } = this.#regions;
    const begin = offsets[this.#first[first_block]!]!;
    let offset = begin;
    for (let block = first_block; block < last_block; block++) {
      const next = this.#first[block + 1]!;
      for (let index = this.#behind[block]!; index < next; index++) {
        if (kinds[index] !== regionKinds.resident)
          throw new Error(`region ${index} is in use and was to be cleared`);
        plan.cost_s += this.#clear_cost_s[index]!;
        if (evict_cost_s[index]! < move_cost_s[index]!) this.#gone[index] = 1;
        else {
          plan.moves.push({ region: index, to_offset: offset });
          offset += bytes[index]!;
        }
      }
    }
    for (const tensor of ascending(tensors)) {
      plan.offsets[tensor] = offset;
      offset += this.#sizes[tensor]!;
    }
    return { begin, end: offset };
  }

  /** Evictions come in whole tensors, so that some may turn out to free bytes that nothing was put on: they stay. */
  #evict(written: Range[], plan: LoadPlan): void {
    written.sort((a, b) => a.begin - b.begin);
    const { count, offsets, bytes, evict_cost_s } = this.#regions;
    const gone = this.#gone;
    let next = 0;
    for (let index = 0; index < count; index++) {
      if (gone[index] === 0) continue;
      const offset = offsets[index]!;
      while (next < written.length && written[next]!.end <= offset) next++;
      const range = written[next];
      if (range !== undefined && range.begin < offset + bytes[index]!) plan.evict.push(index);
      else plan.cost_s -= evict_cost_s[index]!;
    }
  }
}

/** In place; mostly there are few, and they are nearly in order. */
function ascending(values: number[]): number[] {
  for (let index = 1; index < values.length; index++) {
    const value = values[index]!;
    let at = index - 1;
    for (; at >= 0 && values[at]! > value; at--) values[at + 1] = values[at]!;
    values[at + 1] = value;
  }
  return values;
}
