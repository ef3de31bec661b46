/** Where a request goes among devices that are shared (LLM-Mesh §4): the first candidate that can take it. */
import { type Admitted, admitNew, admitTo, type Refused, retryAfter } from './admission.ts';
import { newCandidates, standingCandidates } from './candidates.ts';
import type { ArrivingRequest, DeviceView, InstanceView, ModelLookup, ModelOnDevice } from './device-view.ts';
import type { ParkingPlace } from './eviction.ts';
import type { Move } from './moves.ts';
import { planPreemption } from './preemption.ts';
import type { SharingSettings } from './settings.ts';

export type RequestPlacement =
  | { place: 'instance'; device: DeviceView; instance: InstanceView; admission: Admitted }
  | { place: 'new'; device: DeviceView; model: ModelOnDevice; admission: Admitted }
  | {
      place: 'preemption';
      device: DeviceView;
      instance: InstanceView;
      admission: Admitted;
      /** Pushed off the device, and where its requests go. */
      victim: InstanceView;
      moves: Move[];
      because: string;
    }
  | { place: 'refused'; retry_after_ms: number; refusals: { device: string; because: string }[] };

export function placeRequest(
  request: ArrivingRequest,
  devices: readonly DeviceView[],
  models: ModelLookup,
  now_ms: number,
  settings: SharingSettings,
  parking?: ParkingPlace,
): RequestPlacement {
  const refusals: { device: string; because: string }[] = [];
  const note = (device: DeviceView, refused: Refused): void =>
    void refusals.push({ device: device.id, because: refused.because });
  const standing = standingCandidates(request.model, devices, settings);
  for (const { device, instance } of standing) {
    const admission = admitTo(device, instance, request, now_ms, settings);
    if (admission.admit) return { place: 'instance', device, instance, admission };
    note(device, admission);
  }
  if (settings.preemption) {
    const preemption = planPreemption(request, standing, devices, models, now_ms, settings, parking);
    if (preemption !== undefined) return { place: 'preemption', ...preemption };
  }
  for (const device of newCandidates(devices, settings)) {
    const model = models(request.model, device);
    if (model === undefined) continue;
    const admission = admitNew(device, model, request, now_ms, settings);
    if (admission.admit) return { place: 'new', device, model, admission };
    note(device, admission);
  }
  const retry_after_ms = devices.reduce(
    (least, device) => Math.min(least, retryAfter(device, now_ms, settings)),
    Number.POSITIVE_INFINITY,
  );
  return { place: 'refused', retry_after_ms, refusals };
}
