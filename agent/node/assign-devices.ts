import { HpcserveError } from '../../spec/errors/error.ts';
import { stagesPerNode, type UnitSpec } from '../../spec/launch.ts';
import type { NodeDevices } from '../devices/discover.ts';
import type { NodeDevice } from '../devices/node-device.ts';
import { assignCores } from './assign-cores.ts';

/** A unit, or one stage of it, on a device. */
export interface GroupUnit extends UnitSpec {
  /**
   * Of a model that is cut, which stage is on this device; absent: all of it is. One that the model does not have: the
   * device is for a stage that it may get.
   */
  stage?: number;
  /** Of a pipeline whose layout has changed: which of its rings it is in; absent: the first. */
  ring?: number;
}

/** Units that one process serves: a wrapped engine has one; a device worker the native units of its device. */
export interface UnitGroup {
  /** Name for files and logs: the unit's, or that of the first one on a device worker. */
  name: string;
  engine: UnitSpec['engine'];
  units: GroupUnit[];
  devices: NodeDevice[];
  /** Position of the first of them among the node's devices of that kind, from 0. */
  first_device: number;
  /** Compute threads; over all groups of a node never more than its cores. */
  threads: number;
  /** Cores that its processes keep to; absent: all that the job has. */
  cores?: readonly number[];
}

export interface DeviceAssignment {
  groups: UnitGroup[];
  /** Units that have no devices here, with why. */
  failed: { unit: UnitSpec; error: HpcserveError }[];
  /** Devices that no unit uses. */
  unused: NodeDevice[];
}

/** What of a unit is on this node: a stage on each of its devices where it is cut, else all of it. */
function partsOf(unit: UnitSpec, node_index: number): GroupUnit[] {
  const { stages, stage_devices, device_count, first_device } = unit;
  if (!stages) return [unit];
  const here = stagesPerNode(unit);
  const first_stage = (node_index - unit.node_index) * here;
  const stageOn = (device: number): number => {
    const stage = stage_devices ? stage_devices.indexOf(device) : device < here ? first_stage + device : -1;
    // Behind the last one: its device is for a stage that the unit may get.
    return stage < 0 ? stages.length + device : stage;
  };
  return Array.from({ length: device_count }, (_, device) => ({
    ...unit,
    stage: stageOn(device),
    first_device: first_device + device,
    device_count: 1,
    threads: Math.max(1, Math.floor(unit.threads / device_count)),
    weight_bytes: Math.ceil(unit.weight_bytes / stages.length),
  }));
}

/** Gives the devices of a node to its units, by kind and index. Pure. @param node_index of the node in its job */
export function assignDevices(
  units: readonly UnitSpec[],
  devices: NodeDevices,
  node_index = 0,
): DeviceAssignment {
  const groups: UnitGroup[] = [];
  const failed: DeviceAssignment['failed'] = [];
  const workers = new Map<string, UnitGroup>();
  const used = new Set<NodeDevice>();
  for (const unit of units) {
    const ofKind = devices[unit.device_kind];
    const own = ofKind.slice(unit.first_device, unit.first_device + unit.device_count);
    if (own.length < unit.device_count) {
      failed.push({ unit, error: tooFewDevices(unit, devices) });
      continue;
    }
    const strange = unit.engine === 'native' ? own.find(isStrangeToGgml) : undefined;
    if (strange) {
      failed.push({ unit, error: noBackend(unit, strange, devices) });
      continue;
    }
    for (const device of own) used.add(device);
    for (const part of partsOf(unit, node_index)) {
      const place = `${unit.device_kind}:${part.first_device}+${part.device_count}`;
      const worker = unit.engine === 'native' ? workers.get(place) : undefined;
      if (worker) {
        worker.units.push(part);
        worker.threads = Math.max(worker.threads, part.threads);
        continue;
      }
      const group: UnitGroup = {
        name: part.stage ? `${unit.unit}-stage${part.stage}` : unit.unit,
        engine: unit.engine,
        units: [part],
        devices: devices[unit.device_kind].slice(part.first_device, part.first_device + part.device_count),
        first_device: part.first_device,
        threads: part.threads,
      };
      groups.push(group);
      if (unit.engine === 'native') workers.set(place, group);
    }
  }
  for (const [group, cores] of assignCores(groups, devices.host)) {
    group.cores = cores;
    if (group.devices[0]!.description.kind === 'cpu') group.threads = Math.min(group.threads, cores.length);
  }
  limitThreads(groups, devices.host.allowed_cores.length);
  const all = [...devices.cpu, ...devices.gpu, ...devices.mig];
  // Where there are accelerators the cores are their hosts, not devices left idle.
  const countable = devices.gpu.length + devices.mig.length > 0 ? [...devices.gpu, ...devices.mig] : all;
  return { groups, failed, unused: countable.filter((device) => !used.has(device)) };
}

/**
 * ggml's CPU threads spin at barriers: one thread more than there are cores makes every step wait for the
 * scheduler. What was asked for is scaled down in proportion, to at least one each.
 */
function limitThreads(groups: UnitGroup[], cores: number): void {
  const computing = groups.filter((group) => group.engine === 'native');
  const asked = computing.reduce((sum, group) => sum + group.threads, 0);
  if (asked <= cores) return;
  for (const group of computing) group.threads = Math.max(1, Math.floor((group.threads * cores) / asked));
}

/** A real accelerator that no backend of the native engine's libraries computes on. */
function isStrangeToGgml({ description, ggml_device }: NodeDevice): boolean {
  return description.kind !== 'cpu' && description.emulated === undefined && ggml_device === undefined;
}

function noBackend(unit: UnitSpec, { description }: NodeDevice, { warnings }: NodeDevices): HpcserveError {
  return new HpcserveError('E_NATIVE_LIBRARY', {
    what: `unit ${unit.unit} cannot be computed on ${description.model} by the native engine`,
    because: ['none of the backends of its libraries finds that device', ...warnings],
    try: 'add the backend of its vendor (hpcserve native add cuda|vulkan), see whether its driver and runtime are loaded in the job, or use a wrapped engine',
    details: { unit: unit.unit },
  });
}

function tooFewDevices(unit: UnitSpec, devices: NodeDevices): HpcserveError {
  const found = devices[unit.device_kind].length;
  return new HpcserveError('E_AGENT_DEVICES', {
    what: `unit ${unit.unit} needs ${unit.device_kind} ${unit.first_device} to ${unit.first_device + unit.device_count - 1} of this node`,
    because: [`the job has ${found} of that kind here`, ...devices.warnings],
    details: { unit: unit.unit, found },
  });
}
