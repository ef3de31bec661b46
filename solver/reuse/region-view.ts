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

export function freeBytes(regions: readonly RegionView[]): number {
  let sum = 0;
  for (const region of regions) if (region.kind === 'free') sum += region.bytes;
  return sum;
}
