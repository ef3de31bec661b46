/**
 * Models whose weights are streamed, over several devices of a node: on which device one runs, and what of its link the
 * others leave. MIG slices of one GPU share its link. Which of them a job is given the scheduler says, so slices are
 * taken to be those of as few GPUs as have room for them: what is promised holds wherever they are.
 */
import type { NodeKindOffer } from '../../spec/plan.ts';
import { slicesOfGpu } from '../catalog/mig.ts';
import { hostLink } from '../streaming/host-link.ts';
import { divideLink, type SharedLink } from '../streaming/shared-link.ts';
import { type ModelInUse, placeOnSlice, type SliceState } from '../streaming/slice-placement.ts';
import { streamedStep } from './model-facts.ts';
import type { PlacementOption } from './options.ts';
import { type StreamedReplica, stepsOf_per_s } from './resident-layers.ts';

/** A streamed replica as links see it. */
export interface StreamedDemand {
  model: string;
  /** What a step brings, and how long that and its arithmetic take while nobody else reads. */
  step_bytes: number;
  step_s: number;
  /** Steps that its requests are expected to take. */
  steps_per_s: number;
  /** What its device reads where nobody else does, and what all do together that share its link. */
  link_bytes_per_s: number;
  link_capacity_bytes_per_s: number;
}

export interface LinkedDevice {
  index: number;
  /** Share of its time that models whose weights lie there compute. */
  time: number;
  streamed: readonly StreamedDemand[];
}

/** What further readers of a link cost: an assumption, as in the simulator of streaming. */
const loss_per_reader = 0.02;
/** Where a replica may go, memory is known to suffice. */
const enough = Number.MAX_SAFE_INTEGER;

interface PlacedReplica extends StreamedReplica {
  option: Pick<PlacementOption, 'device' | 'seen'>;
}

/**
 * What a streamed replica asks of its link, but for layers that stay: what stays is known in the end. By the rate that
 * the link is assumed to have: of one that was measured its neighbours have had their part, and they are counted here.
 */
export function demandOf({ option, model, replicas }: PlacedReplica): StreamedDemand {
  const { bytes, seconds, link_bytes_per_s } = streamedStep(model, option.device, undefined);
  return {
    model: model.spec.name,
    step_bytes: bytes,
    step_s: seconds,
    steps_per_s: stepsOf_per_s({ model, replicas }),
    link_bytes_per_s,
    link_capacity_bytes_per_s: hostLink(option.device).capacity_bytes_per_s,
  };
}

/** Of the time that a streamed replica is expected to take of its device, that for its link, as it is predicted. */
export function streamingTime({ option, model, replicas }: PlacedReplica): number {
  return streamedStep(model, option.device, option.seen).seconds * stepsOf_per_s({ model, replicas });
}

/** Which link a device of a node reads over. */
export function linkOf({ devices }: Pick<NodeKindOffer, 'devices'>, index: number): string {
  const slices = devices.kind === 'mig' ? slicesOfGpu(devices.model) : undefined;
  return slices === undefined ? `device ${index}` : `GPU ${Math.floor(index / slices)}`;
}

/**
 * Of some devices the one whose tightest budget of time and link the replica uses least, the first of several.
 * @param all devices of the node that something is on, and those that may be chosen
 * @param more `strict`: one whose budgets do not hold it is no answer
 */
export function leastLoaded(
  demand: StreamedDemand,
  allowed: readonly number[],
  all: readonly LinkedDevice[],
  offer: Pick<NodeKindOffer, 'devices'>,
  { strict }: { strict: boolean },
): number | undefined {
  const links = new Map(all.map(({ index }) => [linkOf(offer, index), demand.link_capacity_bytes_per_s]));
  const states = all.map(({ index, time, streamed }): SliceState => {
    const lying: ModelInUse = { model: '', iteration_ms: time, link_bytes: 0, tpot_ms: 1 };
    return {
      id: String(index),
      link: linkOf(offer, index),
      in_use: [...(time > 0 ? [lying] : []), ...streamed.map(inUse)],
      kv_bytes_free: allowed.includes(index) ? enough : 0,
    };
  });
  const { iteration_ms, link_bytes, tpot_ms } = inUse(demand);
  const { slice, load } = placeOnSlice(
    {
      model: demand.model,
      kv_bytes: 1,
      tpot_ms,
      on: () => ({ iteration_ms, link_bytes }),
    },
    states,
    links,
  );
  return slice === undefined || (strict && load > 1) ? undefined : Number(slice);
}

/** Whether others on the link of a device leave too little of it. */
export function isCrowded(
  demand: StreamedDemand,
  index: number,
  all: readonly LinkedDevice[],
  offer: Pick<NodeKindOffer, 'devices'>,
): boolean {
  if (linkShare(demand, index, all, offer) === 1) return false;
  return leastLoaded(demand, [index], all, offer, { strict: true }) === undefined;
}

/**
 * Of what its device reads alone, what a replica gets while it streams and the other devices on the link read what they
 * are expected to; 1: all of it. Those on its own device take turns with it.
 */
export function linkShare(
  { link_bytes_per_s, link_capacity_bytes_per_s }: StreamedDemand,
  index: number,
  all: readonly LinkedDevice[],
  offer: Pick<NodeKindOffer, 'devices'>,
): number {
  const others = all
    .filter((device) => device.index !== index && linkOf(offer, device.index) === linkOf(offer, index))
    .map(({ streamed }) => streamed.reduce((sum, own) => sum + own.steps_per_s * own.step_bytes, 0));
  const link: SharedLink = { bytes_per_s: link_capacity_bytes_per_s, loss_per_reader };
  const [own] = divideLink(link, [link_bytes_per_s, ...others]);
  return own! / link_bytes_per_s;
}

/** A step is due as often as requests ask for one. */
function inUse({ model, step_s, step_bytes, steps_per_s }: StreamedDemand): ModelInUse {
  return { model, iteration_ms: 1000 * step_s, link_bytes: step_bytes, tpot_ms: 1000 / steps_per_s };
}
