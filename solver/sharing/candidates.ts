/**
 * In which order devices are asked for a request (LLM-Mesh §4, §7.2): an instance that stands before a new one, CPUs
 * before GPUs, the fullest instance of the model before emptier ones. Emptier instances so run dry and go. A gateway
 * orders replicas by `placeRank` with what heartbeats tell it; views of devices are ordered by the same function.
 */
import { affinityCost } from '../reuse/affinity.ts';
import type { DeviceView, InstanceView, ModelLookup, ModelOnDevice } from './device-view.ts';
import type { SharingSettings } from './settings.ts';

/** A place where a request may run, as far as the order depends on it. */
export type RequestPlace = {
  /** Of CPU devices alone; a CPU that stands in for a GPU counts as the GPU. */
  cpu: boolean;
  /** The device misses the model's SLO even without other work. */
  too_slow?: boolean | undefined;
} & (
  | {
      /** The model is there or on its way, and has so many requests. */
      stands: true;
      requests: number;
      /** Where its weights are streamed, see `requestLoad` of `solver/streaming`; absent: nothing is known of it. */
      budget_load?: number | undefined;
    }
  | {
      stands: false;
      /** Until it is there (Tangram Eq. 3). */
      load_s: number;
      /** The device brings another model in for requests that came before. */
      taken: boolean;
      /** How full the device is, from 0, without instances, to 1; see `fullnessOf`. */
      fullness: number;
    }
);

/**
 * Loads whose `affinityCost` falls into the same of so many classes are equally near: then the fuller device is taken.
 * Lower: devices are filled though others would have the model sooner; higher: the other way round.
 */
const affinity_classes = 64;

/** The place with the least is asked first; places of one rank are equals. Below 8. */
export function placeRank(
  place: RequestPlace,
  { cpu_first, bin_packing }: Pick<SharingSettings, 'cpu_first' | 'bin_packing'>,
): number {
  const kind = cpu_first && !place.cpu ? 1 : 0;
  const fuller = (share: number): number => (bin_packing ? 1 - share : share);
  const load = (place.stands && place.budget_load) || 0;
  const slow = place.too_slow || load > 1 ? 4 : 0;
  // Time or link are short everywhere: where least so.
  if (load > 1) return slow + kind + 1 - 1 / (1 + load);
  // Who joins a batch asks no more of the link; where several places have none, the load decides.
  const idle = place.stands && place.requests === 0 ? load / 8 : 0;
  if (place.stands) return slow + kind + fuller(place.requests / (1 + place.requests)) / 2 + idle;
  const near = Math.floor(affinityCost(place.load_s, place.taken) * affinity_classes);
  return slow + 2 + kind + (near + fuller(place.fullness) / 2) / affinity_classes;
}

/**
 * Among GPUs, whose memory runs out first, the share of the pool that is promised; among CPUs, whose time runs out
 * first, the requests count. Without an instance 0.
 * @param promised_share of the device's pool, to weights and KV of all instances
 */
export function fullnessOf(
  cpu: boolean,
  instances: number,
  requests: number,
  promised_share: number,
): number {
  if (instances === 0) return 0;
  return cpu ? (1 + requests) / (2 + requests) : Math.min(1, Math.max(Number.EPSILON, promised_share));
}

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
  return inOrder(
    devices.flatMap((device) =>
      device.instances
        .filter((instance) => instance.model === model)
        .map((instance) => ({
          device,
          instance,
          place: { cpu: device.kind === 'cpu', stands: true, requests: instance.requests.length } as const,
        })),
    ),
    settings,
  );
}

export interface NewCandidate {
  device: DeviceView;
  model: ModelOnDevice;
}

/** Devices where an instance of the model could be made, most promising first. */
export function newCandidates(
  name: string,
  devices: readonly DeviceView[],
  models: ModelLookup,
  settings: SharingSettings,
): NewCandidate[] {
  return inOrder(
    devices.flatMap((device) => {
      const model = models(name, device);
      if (model === undefined) return [];
      const cpu = device.kind === 'cpu';
      const { length } = device.instances;
      const requests = device.instances.reduce((sum, instance) => sum + instance.requests.length, 0);
      const fullness = fullnessOf(cpu, length, requests, device.budget_bytes / device.pool_bytes);
      const place = { cpu, stands: false, load_s: model.load_ms / 1000, taken: false, fullness } as const;
      return [{ device, model, place }];
    }),
    settings,
  );
}

function inOrder<T extends { place: RequestPlace }>(
  candidates: readonly T[],
  settings: SharingSettings,
): T[] {
  return candidates
    .map((candidate) => ({ candidate, rank: placeRank(candidate.place, settings) }))
    .sort((a, b) => a.rank - b.rank)
    .map(({ candidate }) => candidate);
}
