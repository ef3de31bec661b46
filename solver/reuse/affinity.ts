/**
 * Affinity-aware placement (Tangram §3.4, Equation 3 and Algorithm 2): a model goes to the device where it loads
 * fastest, counting what lies there already.
 */

/** What a device says of one model. */
export interface DeviceAffinity {
  device: string;
  /** Whether the device may take the model: enough memory, the right engine, nothing that forbids it. */
  can_run: boolean;
  /** S′: bytes of the model's tensors in the device's pool. */
  reusable_bytes: number;
  /** Bytes per second of every tier that the missing bytes cross: disk, host memory, conversion, link. */
  tier_bandwidths: readonly number[];
}

export interface PendingRequest {
  id: string;
  /** S: bytes of the model in the pool. */
  model_bytes: number;
  devices: readonly DeviceAffinity[];
}

/**
 * Equation 3, (S − S′) / B, in seconds. Tiers are overlapped, so that B is the slowest one.
 */
export function estimateLoadSeconds(
  model_bytes: number,
  reusable_bytes: number,
  tier_bandwidths: readonly number[],
): number {
  const missing = Math.max(0, model_bytes - reusable_bytes);
  return missing === 0 ? 0 : missing / Math.min(...tier_bandwidths);
}

export interface AffinityChoice {
  id: string;
  device: string;
  load_s: number;
}

/**
 * Algorithm 2: requests in their order, each to the device that loads its model soonest, which is then taken.
 * Of equal devices the first named wins. Requests that no device can take are left out: they stay pending.
 */
export function chooseByAffinity(requests: readonly PendingRequest[]): AffinityChoice[] {
  const taken = new Set<string>();
  const choices: AffinityChoice[] = [];
  for (const { id, model_bytes, devices } of requests) {
    let best: AffinityChoice | undefined;
    for (const { device, can_run, reusable_bytes, tier_bandwidths } of devices) {
      if (!can_run || taken.has(device)) continue;
      const load_s = estimateLoadSeconds(model_bytes, reusable_bytes, tier_bandwidths);
      if (!best || load_s < best.load_s) best = { id, device, load_s };
    }
    if (!best) continue;
    taken.add(best.device);
    choices.push(best);
  }
  return choices;
}
