/**
 * What stays on when load is low: a floor of devices that are always on, and elastic ones that are given back when
 * nobody needed them for the reclamation window (FlexPipe §9.4: 30 % of the peak, and 5 minutes).
 */
import { reclamation_s, type ScalingSpec } from '../../spec/scaling.ts';

export interface FloorSettings {
  /** Share of the peak that is always on. Lower: fewer idle devices; higher: fewer cold starts. */
  floor_share: number;
  /** Higher: fewer starts; lower: fewer idle devices. */
  reclamation_ms: number;
}

export const floor_settings: FloorSettings = { floor_share: 0.3, reclamation_ms: 1000 * reclamation_s };

/** Devices that are always on, of a peak of so many; a model that is served at all needs its smallest pipeline. */
export function alwaysOnDevices(
  peak_devices: number,
  smallest_devices: number,
  settings: FloorSettings,
): number {
  return Math.max(smallest_devices, Math.ceil(settings.floor_share * peak_devices));
}

/**
 * Replicas that are always on. The peak is what the user lets a model have; a replica keeps all devices of its job,
 * also those that a coarser pipeline leaves without a stage, so that the floor is one of replicas.
 */
export function alwaysOnReplicas({ min, max }: Pick<ScalingSpec, 'min' | 'max'>): number {
  return min ?? alwaysOnDevices(max, 1, floor_settings);
}
