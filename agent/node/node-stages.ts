import { HpcserveError } from '../../spec/errors/error.ts';
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

  /** The devices load what they lack, and reach for their neighbours. Who drives the change tells the first stage. */
  async prepare(unit: string, layout: StageLayout, devices: readonly LayoutDevice[]): Promise<void> {
    const nodes = layout.stages.map(({ node_index }) => node_index);
    await this.#options.tunnels.open(unit, layout.ring, nodes);
    for (const { stage, worker, next } of devices) if (stage > 0) worker.prepare(layout.ring, next);
  }

  /** The pipeline keeps the stages that it had: what was prepared is given back. */
  keep({ unit, model }: GroupUnit, layout: StageLayout, devices: readonly LayoutDevice[]): void {
    for (const { worker, isUsed } of devices) if (!isUsed) worker.unload(model.name);
    this.#options.tunnels.close(unit, layout.ring);
  }

  /** What workers load when they start again is what they have now; those without a stage unload. */
  change({ unit, model }: GroupUnit, layout: StageLayout, devices: readonly LayoutDevice[]): void {
    const { node_index, supervisors, tunnels } = this.#options;
    for (const supervisor of supervisors()) {
      const { units } = supervisor.group;
      const at = units.findIndex((each) => each.unit === unit);
      const next = devices.find((device) => device.supervisor === supervisor)?.next;
      if (next) units.splice(at < 0 ? units.length : at, at < 0 ? 0 : 1, next);
      else if (at >= 0) {
        // Its device is for a stage that the pipeline may get again.
        units[at] = unitInLayout(units[at]!, layout, node_index);
        if (isSpare(units[at])) supervisor.worker?.unload(model.name);
      }
      supervisor.changed();
    }
    tunnels.keep(unit, layout.ring);
  }

  #device(unit: GroupUnit, layout: StageLayout, stage: number, device: string): LayoutDevice {
    const { node, node_index, supervisors } = this.#options;
    const [kind, index] = device.split(' ');
    const supervisor = supervisors().find(({ group }) => {
      const [of] = group.units;
      return group.engine === 'native' && of?.device_kind === kind && group.first_device === Number(index);
    });
    const worker = supervisor?.worker;
    if (!supervisor || !worker?.upstream)
      throw new HpcserveError('E_REFACTOR_DEVICE', {
        what: `${device} of node ${node} cannot take a stage of ${unit.model.name}`,
        because: 'no device worker runs on it',
      });
    const { first_device, units } = supervisor.group;
    const held = units.find((each) => each.unit === unit.unit);
    const own: GroupUnit = { ...unit, device_kind: units[0]!.device_kind, first_device };
    return {
      stage,
      supervisor,
      worker,
      isUsed: held?.stage !== undefined && !isSpare(held),
      identity: deviceIdentity(worker.folder, own),
      next: unitInLayout(own, layout, node_index),
    };
  }
}
