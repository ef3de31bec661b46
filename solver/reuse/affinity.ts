/**
 * Affinity (Tangram §3.4, Equation 3 and Algorithm 2): a model goes to the device where it is loaded soonest, counting
 * what lies there already. The algorithm's loop over pending requests is the arrival of requests one by one: each takes
 * the best device, and a device that has a model to load is taken for others.
 */
import type { ModelWeights } from '../../spec/agent-state.ts';

/**
 * Equation 3, (S − S′) / B, in seconds; the tiers that bytes cross are overlapped, so that B is that of the slowest
 * one.
 */
export function estimateLoad_s({
  bytes,
  resident_bytes,
  load_bytes_per_s,
}: Pick<ModelWeights, 'bytes' | 'resident_bytes' | 'load_bytes_per_s'>): number {
  const missing = Math.max(0, bytes - resident_bytes);
  return missing === 0 ? 0 : missing / load_bytes_per_s;
}

/**
 * Algorithm 2's order as a cost in [0, 1): devices that load nothing before those that do, and of either kind the one
 * that loads the model soonest.
 * @param load_s see `estimateLoad_s`
 * @param taken the device has another model to load, for requests that came before
 */
export function affinityCost(load_s: number, taken: boolean): number {
  const within = Number.isFinite(load_s) ? load_s / (1 + load_s) : 1 - Number.EPSILON;
  return (within + Number(taken)) / 2;
}
