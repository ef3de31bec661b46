/** Jobs that lend a pipeline its later stages, on nodes of another kind than its first job. */
import type { UnitSpec } from '../../spec/launch.ts';
import type { NodeKindOffer, PlacementSettings, PlannedLaunch } from '../../spec/plan.ts';
import { frameMemory_bytes } from '../../spec/worker-memory.ts';
import { onRealGpu } from './engine-choice.ts';
import { deviceOf } from './kind-stages.ts';
import { hasSameDevices, type LentPart, lentTime_s } from './lenders.ts';
import { devicesAskedFor } from './options.ts';
import type { UnitMemory } from './unit-memory.ts';
import { memoryShare } from './unit-memory.ts';
import { threadsOn } from './way.ts';

/** What a replica takes on each node that lends it stages. */
interface Taken {
  memory: Pick<UnitMemory, 'bytes_per_device' | 'kv_bytes' | 'share'>;
  threads: LentPart['threads'];
}

interface LendingSettings {
  time_limit_s?: number | undefined;
  settings: Pick<PlacementSettings, 'host_overhead_bytes'>;
}

export function jobDevices({ devices }: NodeKindOffer, count: number): PlannedLaunch['devices_per_node'] {
  const { kind, model, memory_bytes, emulated, emulated_step_ms } = devices;
  return { kind, model, count: kind === 'cpu' ? 0 : count, memory_bytes, emulated, emulated_step_ms };
}

/**
 * Its job on a node that lends it stages, with what it takes there. Partitions that somebody names are for the first
 * job: those of the tier of others are others.
 * @param launch of all of its nodes
 */
export function lentBy(
  lender: NodeKindOffer,
  { memory, threads }: Taken,
  launch: PlannedLaunch,
  unit: UnitSpec,
  { settings, time_limit_s }: LendingSettings,
): PlannedLaunch {
  const { node_kind, tier, partitions, devices } = lender;
  const { device_count } = unit;
  const share_bytes = Math.floor((lender.memory_bytes * device_count) / devices.count);
  const device_bytes = memory.bytes_per_device + frameMemory_bytes(launch.node_count);
  const own_bytes = device_bytes * device_count + settings.host_overhead_bytes;
  const there: UnitSpec = {
    ...unit,
    device_kind: devices.kind,
    threads,
    memory: { device_bytes: memory.bytes_per_device, kv_bytes: memory.kv_bytes, share: memory.share },
  };
  const limited = time_limit_s === undefined ? {} : { time_limit_s };
  return {
    ...launch,
    node_kind,
    tier,
    partitions,
    devices_per_node: jobDevices(lender, device_count),
    cpus_per_node: Math.min(lender.cpus, threads),
    memory_bytes_per_node: onRealGpu(lender) ? share_bytes : Math.min(lender.memory_bytes, own_bytes),
    time_limit_s: lentTime_s(limited, lender),
    units: [there],
  };
}

/**
 * The job of stages that are lent, on nodes of another kind, with the stages as they are cut.
 * @param like nodes of the kind that it is for now
 * @returns undefined where these do not suit its stages, or model.yaml
 */
export function lentElsewhere(
  job: PlannedLaunch,
  like: NodeKindOffer,
  lender: NodeKindOffer,
  settings: LendingSettings['settings'],
): PlannedLaunch | undefined {
  const unit = job.part?.lends_to[0];
  if (!job.part || !unit?.memory) return undefined;
  const { device_bytes, kv_bytes } = unit.memory;
  const { devices } = lender;
  const threads = threadsOn(lender, unit.device_count, unit.model);
  const suits =
    lender.tier === 'scavenger' &&
    lender.architecture === like.architecture &&
    devices.kind === like.devices.kind &&
    lender.engines[unit.engine as keyof typeof lender.engines]?.available === true &&
    devices.count >= unit.device_count &&
    devices.memory_bytes >= device_bytes &&
    lender.cpus >= threads &&
    devicesAskedFor({ spec: unit.model }, lender) === undefined;
  if (!suits) return undefined;
  const memory = {
    bytes_per_device: device_bytes,
    kv_bytes,
    share: memoryShare(device_bytes, devices.memory_bytes),
  };
  const { time_limit_s } = job;
  const whole = { ...job, node_count: job.part.jobs };
  const { units, ...there } = lentBy(lender, { memory, threads }, whole, unit, { settings, time_limit_s });
  const host_bytes = (device_bytes + frameMemory_bytes(job.part.jobs)) * unit.device_count;
  if (!onRealGpu(lender) && host_bytes + settings.host_overhead_bytes > lender.memory_bytes) return undefined;
  return { ...there, node_count: 1, units: [], part: { ...job.part, lends_to: units } };
}

/** Kinds of nodes that lend stages, best first: with devices like those that they were cut for, then the fastest. */
export function bestLenders(lenders: readonly NodeKindOffer[], like: NodeKindOffer): NodeKindOffer[] {
  const speed = (lender: NodeKindOffer): number => deviceOf(lender).memory_bandwidth_bytes_per_s;
  return lenders.toSorted(
    (a, b) =>
      Number(hasSameDevices(b, like)) - Number(hasSameDevices(a, like)) ||
      speed(b) - speed(a) ||
      (a.node_kind < b.node_kind ? -1 : 1),
  );
}
