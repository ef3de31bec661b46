/** Pipelines of the native engine that serve: where their stages are, and which devices they may use besides. */
import type { StageQueue } from '../../solver/granularity/congested-stages.ts';
import type { ScalingMark } from '../../solver/locality/resource-graph.ts';
import {
  devicesForStages,
  type LaidStages,
  type StageDevice,
  type StageStarts,
} from '../../solver/placement/stage-layout.ts';
import type { StageCut } from '../../solver/placement/stage-plan.ts';
import type { AgentState } from '../../spec/agent-state.ts';
import type { StageTime } from '../../spec/engine-contract.ts';
import { deviceKindOn, type UnitSpec } from '../../spec/launch.ts';
import type { PlannedLaunch } from '../../spec/plan.ts';
import type { RefactorStage } from '../../spec/refactor.ts';
import { isLive, type LaunchObservation, type Observation } from '../reconcile/observe.ts';
import { type DeploymentState, wantedLaunches } from '../state/deployment-state.ts';
import type { LaunchRecord } from '../state/launch-record.ts';
import { isOfGroup } from '../state/pipeline-groups.ts';

/** As an agent takes it: see `RefactorStage`. */
export interface DevicePlace {
  device: string;
  node: string;
}

export interface HeldPipeline {
  launch_id: string;
  unit: UnitSpec;
  node_kind: string;
  /** Of its coordinator. */
  session_id: string;
  /** In the order of computation. */
  stages: readonly StageCut[];
  /** Those of its stages in their order, then the others that its job has for it, or its jobs have. */
  devices: readonly StageDevice<DevicePlace>[];
  /** Of its stages, as its coordinator said last; absent: it has computed nothing in this cut. */
  queues?: readonly StageQueue[];
  /** Several of its jobs are there: a device of that node is no place that can be named. */
  shared_node?: string | undefined;
  /** The agents of all its nodes are there and have loaded what they have of it. */
  isWhole: boolean;
  /** Its later stages are in jobs whose devices are of another kind than those of the first; absent: all are alike. */
  lent?: LentDevices;
}

/** What each job has for a pipeline whose later stages it has. */
export interface LentDevices {
  node_kind: string;
  model: string;
  device_bytes: number;
}

/** Of pipelines that serve now; others cannot be told anything. */
export function heldPipelines(state: DeploymentState, { launches }: Observation): HeldPipeline[] {
  const wanted = wantedLaunches(state);
  return wanted.flatMap(({ launch_id, planned }) => {
    const seen = launches.get(launch_id);
    return planned.units.flatMap((unit): HeldPipeline[] => {
      if (!unit.stages || !seen) return [];
      const agents = planned.part ? agentsOfGroup(planned.part.group, wanted, launches) : seen.agents;
      const held = heldBy(unit, seen, agents);
      if (!held) return [];
      const pipeline: HeldPipeline = { launch_id, unit, node_kind: planned.node_kind, ...held };
      pipeline.devices = withOthers(pipeline, agents);
      const lent = planned.part && lentDevices(planned, planned.part.group, wanted);
      if (lent) pipeline.lent = lent;
      return [pipeline];
    });
  });
}

/** Of the jobs of the later stages of a pipeline, if these are not like the first one's. */
function lentDevices(
  { devices_per_node: own }: PlannedLaunch,
  group: string,
  wanted: readonly LaunchRecord[],
): LentDevices | undefined {
  const later = wanted.find(
    (launch) => isOfGroup(launch, group) && launch.planned.part!.lends_to.length > 0,
  )?.planned;
  if (!later) return undefined;
  const { kind, model, memory_bytes, emulated } = later.devices_per_node;
  const isAlike =
    kind === own.kind &&
    model === own.model &&
    memory_bytes === own.memory_bytes &&
    emulated === own.emulated;
  if (isAlike) return undefined;
  const device_bytes = later.part!.lends_to[0]!.memory?.device_bytes ?? memory_bytes;
  return { node_kind: later.node_kind, model, device_bytes };
}

/** With the models that others have on each device, whole or a stage of them. */
function withOthers(
  { unit, devices }: Pick<HeldPipeline, 'unit' | 'devices'>,
  agents: readonly AgentState[],
): HeldPipeline['devices'] {
  const models = new Map<string, Set<string>>();
  for (const { node, sessions } of agents)
    for (const { devices: own = [], models: served, stages = [] } of sessions)
      for (const { kind, index } of own) {
        const place = `${node} ${kind} ${index}`;
        const there = models.get(place) ?? new Set<string>();
        models.set(place, there);
        for (const { name } of [...served, ...stages.map(({ model }) => ({ name: model }))])
          if (name !== unit.model.name) there.add(name);
      }
  return devices.map((each) => {
    const others = models.get(`${each.device.node} ${each.device.device}`);
    return others && others.size > 0 ? { ...each, models: [...others] } : each;
  });
}

/**
 * Of the jobs of one pipeline, as of one job: their nodes are counted as its unit counts them. Those of a job that is
 * over have written what they had, and have it no more.
 */
function agentsOfGroup(
  group: string,
  wanted: readonly LaunchRecord[],
  launches: Observation['launches'],
): AgentState[] {
  return wanted
    .filter((launch) => isOfGroup(launch, group) && isLive(launch, launches.get(launch.launch_id)?.job))
    .flatMap(({ launch_id, planned }) => {
      const { node_index: first } = planned.part!;
      const agents = launches.get(launch_id)?.agents ?? [];
      return agents.map((agent) => ({ ...agent, node_index: first + agent.node_index }));
    });
}

/** @param agents of all of its jobs */
function heldBy(
  unit: UnitSpec,
  { units }: LaunchObservation,
  agents: readonly AgentState[],
):
  | Pick<HeldPipeline, 'session_id' | 'stages' | 'devices' | 'shared_node' | 'isWhole' | 'queues'>
  | undefined {
  const status = units.find((each) => each.unit === unit.unit);
  if (status?.state !== 'serving' || !status.stages) return undefined;
  const session = agents
    .flatMap(({ sessions }) => sessions)
    .find((each) => each.units?.includes(unit.unit) && each.session_id !== '');
  const stages = [...status.stages].sort((a, b) => a.stage - b.stage);
  if (!session || stages.some(({ stage, device }, index) => stage !== index || device === undefined))
    return undefined;
  const used = stages.map(
    ({ device, node, begin, end }): StageDevice<DevicePlace> => ({
      device: { device: device!, node },
      node,
      held: { begin, end },
    }),
  );
  const isUsed = (place: DevicePlace): boolean =>
    used.some(({ device }) => device.device === place.device && device.node === place.node);
  const nodes = agents.map(({ node }) => node);
  const held: ReturnType<typeof heldBy> = {
    shared_node: nodes.find((node, at) => nodes.indexOf(node) !== at),
    session_id: session.session_id,
    isWhole: agents.length >= (unit.nodes ?? 1) && agents.every(({ phase }) => phase === 'serving'),
    stages: stages.map(({ begin, end }) => ({ begin, end })),
    devices: [
      ...used,
      ...placesOf(unit, agents)
        .filter((place) => !isUsed(place))
        .map((device) => ({ device, node: device.node })),
    ],
  };
  const queues = queuesOf(session.stage_times?.[unit.model.name] ?? [], stages);
  if (queues) held.queues = queues;
  return held;
}

/** Of another cut they say nothing of this one. */
function queuesOf(told: readonly StageTime[], stages: readonly StageCut[]): StageQueue[] | undefined {
  const isOfCut =
    told.length === stages.length && told.every(({ begin }, index) => begin === stages[index]!.begin);
  if (!isOfCut) return undefined;
  return told.map(({ computed_us, waiting = 0 }) => ({ waiting, stage_s: computed_us / 1e6 }));
}

/** Devices that the job has, or the jobs have, for a unit on its nodes, as far as agents speak of them. */
function placesOf(unit: UnitSpec, agents: readonly AgentState[]): DevicePlace[] {
  const { node_index: first, nodes = 1, first_device, device_count } = unit;
  return agents
    .filter(({ node_index }) => node_index >= first && node_index < first + nodes)
    .flatMap(({ node, node_index, devices }) => {
      const device_kind = deviceKindOn(unit, node_index);
      const there = devices.filter(({ kind }) => kind === device_kind).length;
      const last = Math.min(there, first_device + device_count);
      return Array.from({ length: Math.max(0, last - first_device) }, (_, at) => ({
        device: `${device_kind} ${first_device + at}`,
        node,
      }));
    });
}

/** With when nodes last had a stage of it; those that have one now are remembered. */
export function withHosted(
  pipeline: HeldPipeline,
  hosted: Map<string, number>,
  now_ms: number,
): HeldPipeline {
  for (const { node, held } of pipeline.devices) if (held) hosted.set(node, now_ms);
  const devices = pipeline.devices.map((device) => {
    const hosted_ms = hosted.get(device.node);
    return device.held || hosted_ms === undefined ? device : { ...device, hosted_ms };
  });
  return { ...pipeline, devices };
}

/**
 * The stages of another cut on the devices of a pipeline, and for those that start anew why where they do; undefined
 * where devices are too few. Where these are of two kinds, it is cut for them in the order of its jobs.
 */
export function refactorStages(
  { devices, lent }: Pick<HeldPipeline, 'devices' | 'lent'>,
  cuts: readonly StageCut[],
  starts: StageStarts,
): { stages: RefactorStage[]; starts: string[]; marks: readonly ScalingMark[] } | undefined {
  const laid = lent ? inOrder(cuts, devices, starts.marks) : devicesForStages(cuts, devices, starts);
  if (!laid) return undefined;
  const stages = laid.devices.map(({ device, node }, stage) => {
    const { begin, end } = cuts[stage]!;
    // Attention of layer l is operator 1 + 2l; the embedding goes with the first stage, the head with the last.
    const first_block = stage === 0 ? 0 : (begin - 1) / 2;
    const next_block = stage + 1 < cuts.length ? (end - 1) / 2 : (end - 2) / 2;
    return { device, node, first_block, blocks: next_block - first_block };
  });
  const told = laid.because.map(({ stage, because }) => `stage ${stage}: ${because}`);
  return { stages, starts: told, marks: laid.marks };
}

function inOrder(
  cuts: readonly StageCut[],
  devices: HeldPipeline['devices'],
  marks: readonly ScalingMark[] = [],
): LaidStages<DevicePlace> | undefined {
  if (devices.length < cuts.length) return undefined;
  // Those that are not used now come behind the others, whichever job has them.
  const nodes = [...new Set(devices.map(({ node }) => node))];
  const ordered = nodes.flatMap((node) => devices.filter((each) => each.node === node));
  return { devices: cuts.map((_, stage) => ordered[stage]!.device), because: [], marks };
}
