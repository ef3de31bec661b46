/**
 * Which devices go when load is low: elastic ones that nobody needed for the reclamation window (FlexPipe §9.4). Live,
 * a device goes with the job of its replica (`solver/scaling/scale.ts`); here single ones do.
 */
import type { FloorSettings } from '../locality/always-on-floor.ts';

/** A device that a model holds beyond its floor. */
export interface ElasticDevice {
  id: string;
  /** Since when nothing runs on it; absent: something does. */
  idle_since_ms?: number;
}

export interface Reclamation {
  /** Given back now; their parameters stay in host memory. */
  release: readonly string[];
  /** When to look again; absent: nothing is idle. */
  next_ms?: number;
  because: string;
}

/** @param held all devices of the model, its floor among them */
export function reclaimDevices(
  now_ms: number,
  held: readonly ElasticDevice[],
  floor_devices: number,
  { reclamation_ms }: FloorSettings,
): Reclamation {
  const idle = held
    .filter(({ idle_since_ms }) => idle_since_ms !== undefined)
    .sort((a, b) => a.idle_since_ms! - b.idle_since_ms!);
  const spare = Math.max(0, held.length - floor_devices);
  const release = idle
    .filter(({ idle_since_ms }) => now_ms - idle_since_ms! >= reclamation_ms)
    .slice(0, spare)
    .map(({ id }) => id);
  const waiting = idle.slice(release.length, spare)[0];
  const window_s = Math.round(reclamation_ms / 1000);
  const answer: Reclamation = {
    release,
    because:
      release.length > 0
        ? `${release.length} device(s) were idle for ${window_s} s; ${floor_devices} are always on`
        : waiting === undefined
          ? `nothing is idle beyond the ${floor_devices} that are always on`
          : `idle for less than ${window_s} s`,
  };
  if (waiting !== undefined) answer.next_ms = waiting.idle_since_ms! + reclamation_ms;
  return answer;
}
