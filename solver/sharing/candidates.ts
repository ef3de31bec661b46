/**
 * In which order devices are asked for a request (LLM-Mesh §4, §7.2): CPUs before GPUs, the fullest instance of the
 * model before emptier ones, and an instance that stands before a new one. Emptier instances so run dry and go.
 */
import type { DeviceView, InstanceView } from './device-view.ts';
import type { SharingSettings } from './settings.ts';

export interface StandingCandidate {
  device: DeviceView;
  instance: InstanceView;
}

/** Instances of the model, most promising first. */
export function standingCandidates(
  model: string,
  devices: readonly DeviceView[],
  settings: SharingSettings,
): StandingCandidate[] {
  const candidates = devices.flatMap((device) =>
    device.instances.filter((instance) => instance.model === model).map((instance) => ({ device, instance })),
  );
  const fuller = settings.bin_packing ? -1 : 1;
  return candidates.sort(
    (a, b) =>
      byKind(a.device, b.device, settings) ||
      fuller * (a.instance.requests.length - b.instance.requests.length),
  );
}

/**
 * Devices for a new instance. Among GPUs, whose memory runs out first, the one with the least room left; among CPUs,
 * whose time runs out first, the one with the most requests; empty ones last. Without bin packing the other way round.
 */
export function newCandidates(devices: readonly DeviceView[], settings: SharingSettings): DeviceView[] {
  const load = (device: DeviceView): number =>
    device.kind === 'gpu'
      ? device.budget_bytes / device.pool_bytes
      : device.instances.reduce((sum, { requests }) => sum + requests.length, 0);
  const fuller = settings.bin_packing ? -1 : 1;
  return [...devices].sort(
    (a, b) => byKind(a, b, settings) || fuller * (occupied(a) - occupied(b)) || fuller * (load(a) - load(b)),
  );
}

function occupied(device: DeviceView): number {
  return device.instances.length > 0 ? 1 : 0;
}

function byKind(a: DeviceView, b: DeviceView, settings: SharingSettings): number {
  if (!settings.cpu_first || a.kind === b.kind) return 0;
  return a.kind === 'cpu' ? -1 : 1;
}
