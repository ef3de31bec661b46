import type { DeviceDescription } from '../../spec/session-record.ts';
import { deviceNamed } from './devices.ts';

/**
 * Power that devices may take together, W, by the catalog's limits: of a CPU the part of its cores that are named, of a
 * MIG slice the part of the memory. An upper bound of what they take. Undefined where one is not in the catalog, or
 * something else stands in for it.
 */
export function ratedPower_w(devices: readonly DeviceDescription[]): number | undefined {
  let sum_w = 0;
  for (const { kind, model, memory_bytes, cores, emulated } of devices) {
    const known = emulated ? undefined : deviceNamed(model, kind === 'gpu' ? memory_bytes : undefined);
    if (!known) return undefined;
    let share = 1;
    if (kind === 'cpu' && cores && known.cores) share = cores.length / known.cores;
    else if (kind === 'mig') share = memory_bytes / known.memory_bytes;
    sum_w += known.tdp_w * Math.min(1, share);
  }
  return devices.length > 0 ? sum_w : undefined;
}
