/**
 * Whether a replica runs as it was planned: its node, engine and devices, held against what the node agent says it
 * was given, and what Slurm says of the node. Pure.
 */
import { deviceNamed, variantsOf } from '../../solver/catalog/devices.ts';
import { migSlice } from '../../solver/catalog/mig.ts';
import type { GivenDevice } from '../../spec/agent-state.ts';
import type { UnitSpec } from '../../spec/launch.ts';
import { stageBounds } from '../../spec/model-yaml.ts';
import type { PlannedLaunch, ResolvedEngine } from '../../spec/plan.ts';

/** What the plan says of one replica. */
export interface PlannedUnit {
  node_kind: string;
  tier: PlannedLaunch['tier'];
  engine: ResolvedEngine;
  device_kind: 'cpu' | 'gpu' | 'mig';
  device_model: string;
  device_count: number;
  /** Fewest that it may have, where its number of stages changes; absent: all of them, always. */
  device_count_min?: number;
  device_memory_bytes: number;
  /** Set where a CPU is to stand in for the devices. */
  emulated?: 'cpu';
  /** Nodes it is split over, each with so many devices; absent: one. */
  nodes?: number;
  /** Each of them is a job of its own. */
  jobs?: true;
  /** Those of later stages are on nodes of this tier. */
  lenders?: 'scavenger';
  tensor: number;
  pipeline: number;
  /** Compute threads, where it computes on CPUs. */
  threads: number;
}

/** What it really runs on. */
export interface ActualUnit {
  node: string;
  /** Kinds of the site config this node is of, by what Slurm says of it; absent where nobody could be asked. */
  node_kinds?: string[];
  engine: string;
  devices: GivenDevice[];
}

/** Share of the planned memory a device must have: vendors' and drivers' numbers differ by a few percent. */
const memory_enough = 0.92;

export function plannedUnit(launch: PlannedLaunch, unit: UnitSpec): PlannedUnit {
  const { model, memory_bytes, emulated } = launch.devices_per_node;
  const planned: PlannedUnit = {
    node_kind: launch.node_kind,
    tier: launch.tier,
    engine: unit.engine,
    device_kind: unit.device_kind,
    device_model: model,
    device_count: unit.device_count,
    device_memory_bytes: memory_bytes,
    emulated,
    nodes: unit.nodes,
    tensor: unit.tensor,
    pipeline: unit.pipeline,
    threads: unit.threads,
  };
  if (launch.part !== undefined) planned.jobs = true;
  const { lenders } = unit.model.parallel;
  if (lenders !== undefined) planned.lenders = lenders;
  // It may begin at any number of stages, and has as many devices as it has stages.
  const { stages_min, stages_max } = stageBounds(unit.model);
  if (unit.stages && stages_min < stages_max) planned.device_count_min = 1;
  return planned;
}

/** In what they differ, one sentence each; empty where it runs as planned. */
export function differences(planned: PlannedUnit, actual: ActualUnit): string[] {
  const found: string[] = [];
  const { node, node_kinds, devices } = actual;
  if (node_kinds && !node_kinds.includes(planned.node_kind))
    found.push(
      `planned on node kind ${planned.node_kind}; ${node} is ${node_kinds.length > 0 ? `of kind ${node_kinds.join(', ')}` : 'of none that the site config names'}`,
    );
  if (actual.engine !== planned.engine)
    found.push(`planned with engine ${planned.engine}; ${actual.engine} runs`);
  const { device_count, device_count_min = device_count } = planned;
  if (devices.length > device_count || devices.length < device_count_min)
    found.push(`planned on ${device_count} device(s); it was given ${devices.length}`);
  for (const device of devices) {
    const difference = deviceDifference(planned, device);
    if (difference !== undefined) found.push(`${device.kind} ${device.index}: ${difference}`);
  }
  const cores = devices.flatMap((device) => device.cores ?? []).length;
  const pinned = planned.device_kind === 'cpu' && devices.every(({ emulated }) => !emulated);
  if (pinned && cores > 0 && cores < planned.threads)
    found.push(`planned with ${planned.threads} threads; its devices have ${cores} core(s)`);
  return found;
}

function deviceDifference(planned: PlannedUnit, device: GivenDevice): string | undefined {
  if (planned.emulated !== device.emulated)
    return planned.emulated
      ? `planned as a ${planned.device_model} that a CPU stands in for; it is a real ${device.model}`
      : `planned as a real ${planned.device_model}; a CPU stands in for it`;
  if (device.kind !== planned.device_kind)
    return `planned as ${planned.device_kind}; it is of kind ${device.kind}`;
  if (!sameModel(planned, device)) return `planned as ${planned.device_model}; it is ${device.model}`;
  // A CPU device has what memory the job asked for.
  const measured = device.kind !== 'cpu' && !device.emulated;
  if (measured && device.memory_bytes < memory_enough * planned.device_memory_bytes)
    return `planned with ${gigabytes(planned.device_memory_bytes)}; it has ${gigabytes(device.memory_bytes)}`;
  return undefined;
}

/** Whether the device may be what the site config calls so: names of drivers and kernels are longer. */
function sameModel(
  { device_kind, device_model }: PlannedUnit,
  { model, memory_bytes }: GivenDevice,
): boolean {
  if (bareName(device_model) === bareName(model)) return true;
  // A name that says nothing contradicts nothing: many ARM kernels name no processor.
  if (device_kind === 'cpu' && [device_model, model].some((name) => bareName(name) === '')) return true;
  if (device_kind === 'mig') {
    const slices = [device_model, model].map((name) => migSlice(name, memory_bytes)?.device.name);
    return slices[0] !== undefined && slices[0] === slices[1];
  }
  const actual = deviceNamed(model, memory_bytes);
  if (actual === undefined) return beginsWith(model, device_model);
  return (
    variantsOf(device_model).includes(actual) || deviceNamed(device_model, memory_bytes)?.name === actual.name
  );
}

/** Whether the words of one name begin with those of the other: `X100 PCIe` is an `X100`, `X1000` is none. */
function beginsWith(name: string, beginning: string): boolean {
  const parts = (text: string): string[] => text.toLowerCase().split(/[\s_-]+/);
  const all = parts(name);
  return parts(beginning).every((part, at) => all[at] === part);
}

/** A name without vendor, trademarks, filler and punctuation: `Intel(R) Xeon(R) Processor` and `Xeon` are one. */
function bareName(name: string): string {
  return name
    .toLowerCase()
    .replaceAll(/\((r|tm|c)\)|@.*$/g, ' ')
    .replaceAll(/\b(nvidia|amd|intel|cpu|processor|\d+-core)\b/g, ' ')
    .replaceAll(/[^a-z0-9+]/g, '');
}

function gigabytes(bytes: number): string {
  return `${(bytes / 1e9).toPrecision(3)} GB`;
}
