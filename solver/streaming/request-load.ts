/**
 * How full a device's time and its link are with a request for a model that it streams, by what devices tell of
 * themselves. Gateways order replicas by it, and the simulator its slices. Time to the first token is no part of it:
 * whether that is kept the device says, which knows the prompts that it has.
 */
import type { HostLink } from './host-link.ts';
import { budgetLoad, linkDemands, type ModelInUse, type SliceState } from './slice-placement.ts';

/** A model of a device, as far as others' requests depend on it. */
export interface ToldModel {
  model: string;
  /** That it has, and that are on their way to it. */
  requests: number;
  /** What a step takes to compute; absent: not known. */
  compute_ms?: number | undefined;
  /** What a step brings over the link; absent: its weights lie on the device. */
  step_bytes?: number | undefined;
  /** What is promised between two tokens. */
  tpot_ms: number;
}

export interface ToldDevice {
  id: string;
  /** Devices of one name share it. */
  link: string;
  models: readonly ToldModel[];
  /** The most that its transfers reached; absent: not known. */
  reached_bytes_per_s?: number | undefined;
  /** What a plan takes its link to give; absent: nobody has figures of such a device. */
  assumed?: Pick<HostLink, 'bytes_per_s' | 'capacity_bytes_per_s'> | undefined;
}

/** What is taken of a link by requests that are there. */
export interface LinkUse {
  /** That share it, and that have requests of models that they stream. */
  devices: number;
  reading: number;
  /** What they must read for tokens to come in time. */
  due_bytes_per_s: number;
  /** What it gives them together; absent: not known. */
  capacity_bytes_per_s?: number;
}

/**
 * Of the budget that is tightest there with one request more; at most 1 where all hold. Undefined where the device does
 * not stream the model, or nothing is known of how long a step takes.
 * @param beside all devices that share the link, it among them
 */
export function requestLoad(
  model: string,
  device: ToldDevice,
  beside: readonly ToldDevice[],
): number | undefined {
  const told = device.models.find((own) => own.model === model);
  const asked = told?.step_bytes === undefined ? undefined : inUse(told, device);
  if (asked === undefined) return undefined;
  const states = beside.map(stateOf);
  const { iteration_ms, link_bytes, tpot_ms } = asked;
  return budgetLoad(
    { model, tpot_ms, on: () => ({ iteration_ms, link_bytes }) },
    states[beside.indexOf(device)]!,
    states,
    capacities(beside),
  );
}

/** @param beside all devices of one link */
export function linkUse(beside: readonly ToldDevice[]): LinkUse {
  const states = beside.map(stateOf);
  const reads = ({ requests, step_bytes = 0 }: ToldModel): boolean => requests > 0 && step_bytes > 0;
  const use: LinkUse = {
    devices: beside.length,
    reading: beside.filter(({ models }) => models.some(reads)).length,
    due_bytes_per_s: [...linkDemands(states).values()].reduce((sum, due) => sum + due, 0),
  };
  const [capacity] = capacities(beside).values();
  if (capacity !== undefined) use.capacity_bytes_per_s = capacity;
  return use;
}

function stateOf(device: ToldDevice): SliceState {
  return {
    id: device.id,
    link: device.link,
    in_use: device.models.flatMap((told) => (told.requests > 0 ? (inUse(told, device) ?? []) : [])),
    kv_bytes_free: 0,
  };
}

/** At the device's own rate of the link: what neighbours take of it is counted beside. */
function inUse(
  { model, compute_ms, step_bytes = 0, tpot_ms }: ToldModel,
  { reached_bytes_per_s, assumed }: ToldDevice,
): ModelInUse | undefined {
  const rate = reached_bytes_per_s ?? assumed?.bytes_per_s;
  const link_ms = step_bytes > 0 ? rate && (1000 * step_bytes) / rate : compute_ms && 0;
  if (link_ms === undefined) return undefined;
  return { model, iteration_ms: Math.max(compute_ms ?? 0, link_ms), link_bytes: step_bytes, tpot_ms };
}

/**
 * What links give to all of their devices, by name. A link that gives none of them what it was assumed to (a slot of
 * fewer lanes) gives all of them as much less. Of one that nobody has figures of, what its only device reaches.
 */
function capacities(beside: readonly ToldDevice[]): Map<string, number> {
  const found = new Map<string, number>();
  for (const { link } of beside) {
    if (found.has(link)) continue;
    const devices = beside.filter((device) => device.link === link);
    const reached = devices.flatMap(({ reached_bytes_per_s }) => reached_bytes_per_s ?? []);
    const shares = devices.flatMap(({ reached_bytes_per_s, assumed }) =>
      reached_bytes_per_s !== undefined && assumed ? reached_bytes_per_s / assumed.bytes_per_s : [],
    );
    const assumed = devices.flatMap((device) => device.assumed?.capacity_bytes_per_s ?? []);
    if (assumed.length > 0) {
      const share = shares.length > 0 ? Math.min(1, Math.max(...shares)) : 1;
      found.set(link, Math.max(...reached, share * Math.max(...assumed)));
    } else if (devices.length === 1 && reached.length === 1) found.set(link, reached[0]!);
  }
  return found;
}
