/**
 * Where a request goes among devices that are shared (LLM-Mesh §4), in one step. Live, this is a way over several
 * processes, and each part is theirs: a gateway asks places by `placeRank` (`solver/routing/by-engine.ts`), workers
 * answer by `admitTo` and `admitNew` (`agent/device-worker/compute`), and before an instance more is made the gateway
 * looks for a neighbour that gives way (`gateway/sharing`).
 */
import { type Admitted, admitNew, admitTo, type Refused, retryAfter } from '../sharing/admission.ts';
import { newCandidates, standingCandidates } from '../sharing/candidates.ts';
import type {
  ArrivingRequest,
  DeviceView,
  InstanceView,
  ModelLookup,
  ModelOnDevice,
  ParkingPlace,
} from '../sharing/device-view.ts';
import type { Move } from '../sharing/moves.ts';
import { planPreemption } from '../sharing/preemption.ts';
import type { SharingSettings } from '../sharing/settings.ts';

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
  for (const { device, model } of newCandidates(request.model, devices, models, settings)) {
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
