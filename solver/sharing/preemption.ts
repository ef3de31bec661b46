/**
 * Proactive defragmentation (LLM-Mesh §7.1): an instance that its neighbours keep from growing pushes a smaller one off
 * the device, so that its model is not split. Only where every request of that one is taken elsewhere within its SLO.
 */
import { type Admitted, admitTo } from './admission.ts';
import type { StandingCandidate } from './candidates.ts';
import {
  type ArrivingRequest,
  type DeviceView,
  type InstanceView,
  type ModelLookup,
  type ParkingPlace,
  standing_bytes,
} from './device-view.ts';
import { findPlaces, type Move, moves_max } from './moves.ts';
import type { SharingSettings } from './settings.ts';

export interface Preemption {
  device: DeviceView;
  instance: InstanceView;
  admission: Admitted;
  victim: InstanceView;
  moves: Move[];
  because: string;
}

/** @param standing the instances of the request's model, in the order in which they were asked and refused */
export function planPreemption(
  request: ArrivingRequest,
  standing: readonly StandingCandidate[],
  devices: readonly DeviceView[],
  models: ModelLookup,
  now_ms: number,
  settings: SharingSettings,
  parking?: ParkingPlace,
): Preemption | undefined {
  for (const { device, instance } of standing) {
    const smaller = device.instances
      .filter(
        (other) =>
          other !== instance &&
          !other.fixed &&
          other.requests.length < instance.requests.length &&
          other.requests.length > 0 &&
          other.requests.length <= moves_max,
      )
      .sort((a, b) => a.requests.length - b.requests.length);
    for (const victim of smaller) {
      const admission = admitTo(without(device, victim), instance, request, now_ms, settings);
      if (!admission.admit) continue;
      const moves = findPlaces(
        victim,
        devices.filter(({ id }) => id !== device.id),
        models,
        now_ms,
        settings,
        parking,
      );
      if (moves === undefined) continue;
      return {
        device,
        instance,
        admission,
        victim,
        moves,
        because: `${instance.id} (batch ${instance.requests.length}) takes the place of ${victim.id} (batch ${victim.requests.length}), whose requests go to ${[...new Set(moves.map((move) => move.device))].join(', ')}`,
      };
    }
  }
  return undefined;
}

/** The device as it will be once the instance has gone. */
function without(device: DeviceView, victim: InstanceView): DeviceView {
  return {
    ...device,
    instances: device.instances.filter((other) => other !== victim),
    budget_bytes: device.budget_bytes - standing_bytes(victim) - victim.kv_bytes,
  };
}
