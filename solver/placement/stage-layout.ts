/**
 * On which devices the stages of another cut lie, so that least has to be moved: what a device computes already, it
 * keeps. What starts anew goes to a device that other models leave alone, where there is one (Eq. 6 to 8), and of those
 * to the node that FlexPipe's Eq. 13 prefers (`solver/locality`). Pure.
 */
import { type AffinityCandidate, chooseServers } from '../locality/host-affinity.ts';
import type { ResourceGraph, ScalingMark } from '../locality/resource-graph.ts';
import { load_bytes_per_s, type StageCut } from './stage-plan.ts';
import { devicesToStartOn } from './stage-sharing.ts';

/** A device that a pipeline may use, and what it computes of it now. */
export interface StageDevice<Id> {
  device: Id;
  node: string;
  held?: StageCut;
  /** When its node last had a stage of the pipeline, where it has none now; absent: never, as far as is known. */
  hosted_ms?: number;
  /** Other models that something of is on it; absent: none. */
  models?: readonly string[];
}

export interface StageStarts {
  model: string;
  /** CV of the model's arrivals. */
  cv: number;
  /** Weights of each stage. */
  stage_bytes: readonly number[];
  /** What a batch takes in each, s. */
  stage_s: readonly number[];
  now_ms: number;
  /** Loads of other pipelines that are under way; absent: none is known of. */
  marks?: readonly ScalingMark[];
}

export interface LaidStages<Id> {
  /** Of each stage. */
  devices: Id[];
  /** Of each stage that starts on a device which has nothing of it: why there. */
  because: { stage: number; because: string }[];
  /** Of its loads, beside those that were there. */
  marks: readonly ScalingMark[];
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
  let { marks = [] } = starts;
  const starting = [...cuts.keys()].filter((stage) => !taken.has(stage));
  const allowed = startsOn(starting, devices, free, starts);
  for (const stage of starting) {
    const bytes = starts.stage_bytes[stage] ?? 0;
    const among = allowed.get(stage)!.filter((device) => free.has(device));
    const start = startOf(cuts[stage]!, bytes, devices, among, starts.now_ms, marks);
    taken.set(stage, start.device);
    free.delete(start.device);
    marks = start.marks;
    because.push({ stage, because: `${start.because}${aboutOthers(devices, among, start.device)}` });
  }
  return { devices: cuts.map((_, stage) => devices[taken.get(stage)!]!.device), because, marks };
}

/** Devices that hold nothing before those that another stage leaves; of each stage, those where it is worth most. */
function startsOn<Id>(
  starting: readonly number[],
  devices: readonly StageDevice<Id>[],
  free: ReadonlySet<number>,
  { model, cv, stage_bytes, stage_s }: StageStarts,
): Map<number, readonly number[]> {
  const empty = [...free].filter((at) => devices[at]!.held === undefined);
  const eligible =
    empty.length >= starting.length ? empty : [...empty, ...[...free].filter((at) => !empty.includes(at))];
  const on = devicesToStartOn(
    {
      model,
      cv,
      stage_bytes: starting.map((stage) => stage_bytes[stage] ?? 0),
      stage_s: starting.map((stage) => stage_s[stage] ?? 1),
    },
    eligible.map((at) => devices[at]!.models ?? []),
  );
  return new Map(starting.map((stage, index) => [stage, on[index]!.map((at) => eligible[at]!)]));
}

/** Of devices that others are on, for people. */
function aboutOthers<Id>(
  devices: readonly StageDevice<Id>[],
  among: readonly number[],
  chosen: number,
): string {
  const others = devices[chosen]!.models ?? [];
  if (others.length > 0) return `; beside ${others.join(', ')}, since every free device has others`;
  const shared = devices.some(({ models = [], held }) => models.length > 0 && held === undefined);
  return shared && among.length > 0 ? '; other models leave that device alone' : '';
}

/** A free device for a stage that starts anew, by the node that it is on. */
function startOf<Id>(
  cut: StageCut,
  bytes: number,
  devices: readonly StageDevice<Id>[],
  among: readonly number[],
  now_ms: number,
  marks: readonly ScalingMark[],
): { device: number; because: string; marks: readonly ScalingMark[] } {
  // Devices that hold nothing before those that another stage leaves.
  const empty = among.filter((at) => devices[at]!.held === undefined);
  const eligible = empty.length > 0 ? empty : among;
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
