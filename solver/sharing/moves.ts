/** Requests of one instance that are to run elsewhere (LLM-Mesh §7.1): a place for all of them, or for none. */
import { type Admitted, admitNew, admitTo, loadTime } from './admission.ts';
import { newCandidates, standingCandidates } from './candidates.ts';
import {
  type ArrivingRequest,
  type DeviceView,
  type InstanceView,
  lengthOf,
  type ModelLookup,
  type ParkingPlace,
  type RequestView,
  standing_bytes,
} from './device-view.ts';
import { decideKvFate } from './eviction.ts';
import type { SharingSettings } from './settings.ts';

/** Requests that are moved at once: each takes a validation per candidate, and its KV a transfer. */
export const moves_max = 8;

/** A request that changes its device; its tokens are computed again there, or its KV is restored. */
export interface Move {
  request: string;
  device: string;
  /** Absent: a new instance of its model. */
  instance?: string;
  admission: Admitted;
}

/**
 * A place for each of the instance's requests, the most urgent first; undefined where one finds none.
 * @param devices where to look: not the instance's own
 * @param models absent: only instances that stand
 */
export function findPlaces(
  victim: InstanceView,
  devices: readonly DeviceView[],
  models: ModelLookup | undefined,
  now_ms: number,
  settings: SharingSettings,
  parking: ParkingPlace | undefined,
): Move[] | undefined {
  // Each move is seen by the ones after it.
  const views = devices.map((device) => ({ ...device, instances: [...device.instances] }));
  const moves: Move[] = [];
  const urgent = [...victim.requests].sort((a, b) => a.arrival_ms - b.arrival_ms);
  for (const request of urgent) {
    const move = findPlace(arrivalsOf(request, victim, now_ms, parking), views, models, now_ms, settings);
    if (move === undefined) return undefined;
    moves.push(move);
  }
  return moves;
}

/** A request as it arrives elsewhere: its KV follows it, or is computed again there. */
export function movedRequest(
  request: RequestView,
  from: InstanceView,
  now_ms: number,
  parking: ParkingPlace | undefined,
): ArrivingRequest {
  const fate = decideKvFate(request, from.kv_bytes_per_token, from.profile, parking ? [parking] : []);
  const { model } = from;
  return fate.do === 'park'
    ? { ...request, model, prefill_tokens_left: 0, available_at_ms: now_ms + fate.restore_ms }
    : { ...request, model, prefill_tokens_left: lengthOf(request), available_at_ms: 0 };
}

/** One request, where its model stands, and where it is loaded for it: there nothing takes its KV before that. */
interface Arrivals {
  standing: ArrivingRequest;
  loaded: ArrivingRequest;
}

function arrivalsOf(
  request: RequestView,
  from: InstanceView,
  now_ms: number,
  parking: ParkingPlace | undefined,
): Arrivals {
  const loaded = movedRequest(request, from, now_ms, parking);
  const { carry } = from;
  const carried = carry && movedRequest(request, from, now_ms, carry);
  // Whichever is sooner there: none of its KV is to be computed, or less time passes.
  const isBetter =
    carried !== undefined &&
    carried.prefill_tokens_left === 0 &&
    (loaded.prefill_tokens_left > 0 || carried.available_at_ms < loaded.available_at_ms);
  return { standing: isBetter ? carried : loaded, loaded };
}

function findPlace(
  { standing: request, loaded }: Arrivals,
  views: DeviceView[],
  models: ModelLookup | undefined,
  now_ms: number,
  settings: SharingSettings,
): Move | undefined {
  for (const { device, instance } of standingCandidates(request.model, views, settings)) {
    const admission = admitTo(device, instance, request, now_ms, settings);
    // Two moves must not count on the same release.
    if (!admission.admit || admission.releases.length > 0) continue;
    replace(device, instance, {
      ...instance,
      kv_bytes: admission.kv_bytes,
      places: instance.places !== undefined ? instance.places - 1 : undefined,
      requests: [...instance.requests, request],
    });
    device.budget_bytes += admission.kv_bytes - instance.kv_bytes;
    return { request: request.id, device: device.id, instance: instance.id, admission };
  }
  if (models === undefined) return undefined;
  for (const { device, model } of newCandidates(request.model, views, models, settings)) {
    // Who has begun to answer waits for the model: the time that it takes is time without tokens.
    const counted = { ...settings, cold_start_counts: true };
    const admission = admitNew(device, model, loaded, now_ms, counted);
    if (!admission.admit || admission.releases.length > 0) continue;
    device.instances.push({
      id: `new:${request.model}:${device.id}`,
      model: request.model,
      profile: model.profile,
      ready_at_ms: now_ms + loadTime(device, model, admission.kv_bytes),
      weight_bytes: model.weight_bytes,
      working_bytes: model.working_bytes,
      kv_bytes: admission.kv_bytes,
      kv_bytes_per_token: model.kv_bytes_per_token,
      requests: [loaded],
    });
    device.budget_bytes += standing_bytes(model) + admission.kv_bytes;
    return { request: request.id, device: device.id, admission };
  }
  return undefined;
}

function replace(device: DeviceView, old: InstanceView, now: InstanceView): void {
  device.instances[device.instances.indexOf(old)] = now;
}
