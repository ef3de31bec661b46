/**
 * On which devices the stages of another cut lie, so that least has to be moved: what a device computes already, it
 * keeps. What starts anew goes to the node that FlexPipe's Eq. 13 prefers (`solver/locality`). Pure.
 */
import { type AffinityCandidate, chooseServers } from '../locality/host-affinity.ts';
import type { ResourceGraph, ScalingMark } from '../locality/resource-graph.ts';
import { load_bytes_per_s, type StageCut } from './stage-plan.ts';

/** A device that a pipeline may use, and what it computes of it now. */
export interface StageDevice<Id> {
  device: Id;
  node: string;
  held?: StageCut;
  /** When its node last had a stage of the pipeline, where it has none now; absent: never, as far as is known. */
  hosted_ms?: number;
}

export interface StageStarts {
  /** Weights of each stage. */
  stage_bytes: readonly number[];
  now_ms: number;
}

export interface LaidStages<Id> {
  /** Of each stage. */
  devices: Id[];
  /** Of each stage that starts on a device which has nothing of it: why there. */
  because: { stage: number; because: string }[];
}

/** From the page cache of a node to one of its devices, bytes/s. Lower: weights on the node count for less. */
const host_bytes_per_s = 8e9;

/**
 * The first stage stays on its device, since requests and sequences are there. Of the others the pair of stage and
 * device that has most operators in common comes first; what has none in common starts anew, one after the other.
 * @param devices those that are used now in the order of their stages, then the others
 * @returns undefined where there are fewer devices than stages
 */
export function devicesForStages<Id>(
  cuts: readonly StageCut[],
  devices: readonly StageDevice<Id>[],
  starts: StageStarts,
): LaidStages<Id> | undefined {
  if (devices.length < cuts.length) return undefined;
  const taken = new Map<number, number>([[0, 0]]);
  const free = new Set(devices.keys());
  free.delete(0);
  const pairs = cuts
    .flatMap((cut, stage) =>
      devices.map(({ held }, device) => ({ stage, device, common: held ? operatorsInCommon(cut, held) : 0 })),
    )
    .filter(({ common }) => common > 0)
    .sort((a, b) => b.common - a.common || a.stage - b.stage || a.device - b.device);
  for (const { stage, device } of pairs) {
    if (taken.has(stage) || !free.has(device)) continue;
    taken.set(stage, device);
    free.delete(device);
  }
  const because: LaidStages<Id>['because'] = [];
  let marks: readonly ScalingMark[] = [];
  for (const [stage, cut] of cuts.entries()) {
    if (taken.has(stage)) continue;
    const start = startOf(cut, starts.stage_bytes[stage] ?? 0, devices, free, starts.now_ms, marks);
    taken.set(stage, start.device);
    free.delete(start.device);
    marks = start.marks;
    because.push({ stage, because: start.because });
  }
  return { devices: cuts.map((_, stage) => devices[taken.get(stage)!]!.device), because };
}

/** A free device for a stage that starts anew, by the node that it is on. */
function startOf<Id>(
  cut: StageCut,
  bytes: number,
  devices: readonly StageDevice<Id>[],
  free: ReadonlySet<number>,
  now_ms: number,
  marks: readonly ScalingMark[],
): { device: number; because: string; marks: readonly ScalingMark[] } {
  // Devices that hold nothing before those that another stage leaves.
  const empty = [...free].filter((at) => devices[at]!.held === undefined);
  const eligible = empty.length > 0 ? empty : [...free];
  const graph = graphOf(devices);
  const candidates = graph.servers.flatMap((server): AffinityCandidate[] => {
    const devices_free = eligible.filter((at) => devices[at]!.node === server.id).length;
    if (devices_free === 0) return [];
    const there = devices.filter(({ node }) => node === server.id);
    const hosted = there.flatMap(({ held, hosted_ms }) => (held ? [now_ms] : (hosted_ms ?? [])));
    // Some device of the pipeline has any layer; where that is on the node, its page cache has it, too.
    const isThere = there.some(({ held }) => held !== undefined && operatorsInCommon(cut, held) > 0);
    const candidate: AffinityCandidate = { server, devices_free, source: isThere ? 'host' : 'peer' };
    if (hosted.length > 0) candidate.hosted_ms = Math.max(...hosted);
    return [candidate];
  });
  const answer = chooseServers({ graph, marks, now_ms, candidates, stage_bytes: [bytes] });
  const choice = answer.choices[0]!;
  const device = eligible.find((at) => devices[at]!.node === choice.server)!;
  return { device, because: choice.because, marks: answer.marks };
}

/** Nothing is known of what nodes share: the network of each is its own, and one client of it has its pace. */
function graphOf<Id>(devices: readonly StageDevice<Id>[]): ResourceGraph {
  const nodes = [...new Set(devices.map(({ node }) => node))];
  return {
    storage_bytes_per_s: load_bytes_per_s,
    rack_bytes_per_s: load_bytes_per_s,
    servers: nodes.map((id) => ({ id, rack: id, link_bytes_per_s: host_bytes_per_s })),
  };
}

function operatorsInCommon(a: StageCut, b: StageCut): number {
  return Math.max(0, Math.min(a.end, b.end) - Math.max(a.begin, b.begin));
}
