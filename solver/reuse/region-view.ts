/**
 * What the planner sees of a memory pool: its regions in the order of their addresses, without gaps
 * (Tangram §3.2). Costs are seconds, so that those of Equation 1 can be added up.
 */
export type RegionView = FreeRegion | ResidentRegion | FixedRegion;

export interface FreeRegion {
  kind: 'free';
  bytes: number;
}

/** A tensor that no live instance uses: it may be evicted or moved. */
export interface ResidentRegion {
  kind: 'resident';
  bytes: number;
  /** c of Equation 2: expected seconds of loading it again. */
  evict_cost_s: number;
  /** m of Equation 1: seconds of copying it within the pool. */
  move_cost_s: number;
}

/** In use, or being loaded: it stays where it is. */
export interface FixedRegion {
  kind: 'fixed';
  bytes: number;
}

/** Regions as columns, each of shape [count]: what is read a thousand times in a plan is read from objects once. */
export interface RegionColumns {
  count: number;
  /** Of `regionKinds`. */
  kinds: Uint8Array;
  offsets: Float64Array;
  bytes: Float64Array;
  /** 0 where it is not resident. */
  evict_cost_s: Float64Array;
  move_cost_s: Float64Array;
  /** Of all free regions. */
  free_bytes: number;
}

export const regionKinds = { free: 0, resident: 1, fixed: 2 } as const;

export function columnsOf(regions: readonly RegionView[]): RegionColumns {
  const { length } = regions;
  const kinds = new Uint8Array(length);
  const offsets = new Float64Array(length);
  const bytes = new Float64Array(length);
  const evict_cost_s = new Float64Array(length);
  const move_cost_s = new Float64Array(length);
  let free_bytes = 0;
  let offset = 0;
  for (let index = 0; index < length; index++) {
    const region = regions[index]!;
    kinds[index] = regionKinds[region.kind];
    offsets[index] = offset;
    bytes[index] = region.bytes;
    offset += region.bytes;
    if (region.kind === 'free') free_bytes += region.bytes;
    else if (region.kind === 'resident') {
      evict_cost_s[index] = region.evict_cost_s;
      move_cost_s[index] = region.move_cost_s;
    }
  }
  return { count: length, kinds, offsets, bytes, evict_cost_s, move_cost_s, free_bytes };
}
