import { HpcserveError } from '../../spec/errors/error.ts';
import type { UnitSpec } from '../../spec/launch.ts';
import type { GroupUnit } from './assign-devices.ts';
import type { DeviceWorkerProcess } from './device-worker-process.ts';
import { type StageLayout, unitInLayout } from './stage-layout.ts';
import { deviceIdentity, isSpare } from './stage-place.ts';
import type { StageTunnels } from './stage-tunnels.ts';
import type { UnitSupervisor } from './unit-supervisor.ts';

interface NodeStagesOptions {
  node: string;
  /** Among those that units count. */
  node_index: number;
  tunnels: StageTunnels;
  supervisors(): readonly UnitSupervisor[];
}

/** A device of this node that is to have a stage of a unit, and its worker. */
export interface LayoutDevice {
  stage: number;
  supervisor: UnitSupervisor;
  worker: DeviceWorkerProcess;
  /** It computes a stage of the unit now. */
  isUsed: boolean;
  /** What the device is among all of the pipeline's. */
  identity: string;
  next: GroupUnit;
}

/**
 * What the devices of this node have of pipelines, and what they get of another layout: told by the agent of the
 * coordinator's node, which may be this one.
 */
export class NodeStages {
  readonly #options: NodeStagesOptions;

  constructor(options: NodeStagesOptions) {
    this.#options = options;
  }

  /**
   * The devices of this node that have a stage in a layout, in the order of computation.
   * @param unit as any device of this node has it
   * @throws HpcserveError E_REFACTOR_DEVICE
   */
  devices(unit: GroupUnit, layout: StageLayout): LayoutDevice[] {
    const { node_index } = this.#options;
    return layout.stages.flatMap(({ device, node_index: at }, stage) =>
      at === node_index ? [this.#device(unit, layout, stage, device)] : [],
    );
  }

  /** As a device of this node has it now, whichever; undefined where none has anything of it, and none is for it. */
  unit(name: string): GroupUnit | undefined {
    return this.#options
      .supervisors()
      .flatMap(({ group }) => group.units)
      .find(({ unit }) => unit === name);
  }

  /** The device of this node that has the first stage of a unit; undefined where none has. */
  coordinator(name: string): { unit: GroupUnit; supervisor: UnitSupervisor } | undefined {
    for (const supervisor of this.#options.supervisors()) {
      const unit = supervisor.group.units.find((each) => each.unit === name && each.stage === 0);
      if (unit) return { unit, supervisor };
    }
    return undefined;
  }

  /** Units of which this node has stages, and not the first one. */
  followed(): UnitSpec[] {
    const units = this.#options.supervisors().flatMap(({ group }) => group.units);
    const later = units.filter(
      (unit) => unit.stages !== undefined && (unit.stage ?? 0) > 0 && !isSpare(unit),
    );
    const names = new Set(later.map(({ unit }) => unit).filter((name) => !this.coordinator(name)));
    return [...names].map((name) => later.find(({ unit }) => unit === name)!);
  }

  /** Of the layout that the node has of a unit; 0: of its launch. Undefined where it has nothing of it. */
  ring(name: string): number | undefined {
    const unit = this.unit(name);
    return unit && (unit.ring ?? 0);
  }

  /** The devices load what they lack, and reach for their neighbours. Who drives the change tells the first stage. */
  async prepare(unit: string, layout: StageLayout, devices: readonly LayoutDevice[]): Promise<void> {
    const nodes = layout.stages.map(({ node_index }) => node_index);
    await this.#options.tunnels.open(unit, layout.ring, nodes);
    for (const { stage, worker, next } of devices) if (stage > 0) worker.prepare(layout.ring, next);
  }

  /** The pipeline keeps the stages that it had: what was prepared is given back. */
  keep({ unit, model }: GroupUnit, layout: StageLayout, devices: readonly LayoutDevice[]): void {
    for (const { worker, isUsed, stage } of devices)
      if (!isUsed) worker.unload(model.name);
      // The first stage has given back what it had, as it drove the change.
      else if (stage > 0) worker.unprepare(layout.ring, model.name);
    this.#options.tunnels.close(unit, layout.ring);
  }

  /**
   * What workers load when they start again is what they have now; those without a stage unload. A device that has a
   * stage of it and no longer what was prepared for that adopts the layout: it loads its range anew, as at a start, and
   * the ring comes up with it. One that has the layout, or a later one, is left as it is.
   *
   * @param ready devices that still have what was prepared, as far as their workers live
   * @throws the system's error; then nothing has changed
   */
  async change(unit: GroupUnit, layout: StageLayout, ready: readonly LayoutDevice[]): Promise<void> {
    const { supervisors, tunnels } = this.#options;
    const nodes = layout.stages.map(({ node_index }) => node_index);
    if ((this.ring(unit.unit) ?? 0) >= layout.ring) return;
    if (!tunnels.has(unit.unit, layout.ring)) await tunnels.open(unit.unit, layout.ring, nodes);
    for (const supervisor of supervisors()) {
      if (nameOf(supervisor) === undefined) continue;
      const { units } = supervisor.group;
      const at = units.findIndex((each) => each.unit === unit.unit);
      // A device without a stage is for one that the pipeline may get again.
      const next = this.#unitOn(supervisor, units[at] ?? unit, layout);
      if (at < 0 && isSpare(next)) continue;
      units.splice(at < 0 ? units.length : at, at < 0 ? 0 : 1, next);
      const { worker } = supervisor;
      if (isSpare(next)) worker?.unload(unit.model.name);
      else if (!ready.some((device) => device.supervisor === supervisor && device.worker === worker))
        worker?.reload(next);
      supervisor.changed();
    }
    tunnels.keep(unit.unit, layout.ring);
  }

  #device(unit: GroupUnit, layout: StageLayout, stage: number, device: string): LayoutDevice {
    const { node, supervisors } = this.#options;
    const supervisor = supervisors().find((each) => nameOf(each) === device);
    const worker = supervisor?.worker;
    if (!supervisor || !worker?.upstream)
      throw new HpcserveError('E_REFACTOR_DEVICE', {
        what: `${device} of node ${node} cannot take a stage of ${unit.model.name}`,
        because: 'no device worker runs on it',
      });
    const held = supervisor.group.units.find((each) => each.unit === unit.unit);
    const next = this.#unitOn(supervisor, unit, layout);
    return {
      stage,
      supervisor,
      worker,
      isUsed: held?.stage !== undefined && !isSpare(held),
      identity: deviceIdentity(worker.folder, next),
      next,
    };
  }

  /** What the device of a worker has of a unit in a layout. */
  #unitOn({ group }: UnitSupervisor, unit: GroupUnit, layout: StageLayout): GroupUnit {
    const device_kind = group.units[0]?.device_kind ?? unit.device_kind;
    const own: GroupUnit = {
      ...unit,
      device_kind,
      first_device: group.first_device,
    };
    return unitInLayout(own, layout, this.#options.node_index);
  }
}

/** Of a device worker's device, as layouts name it; undefined for another engine. */
function nameOf({ group }: UnitSupervisor): string | undefined {
  const [unit] = group.units;
  return group.engine === 'native' && unit ? `${unit.device_kind} ${group.first_device}` : undefined;
}
