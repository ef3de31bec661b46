import { stageOperatorsOf } from '../../solver/refactoring/block-layout.ts';
import type { PipelineLayout } from '../../solver/refactoring/layout.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { RefactorOutcome, RefactorRequest, RefactorStage } from '../../spec/refactor.ts';
import type { RefactoringReport } from '../pipeline/live-refactoring.ts';
import type { GroupUnit } from './assign-devices.ts';
import type { DeviceWorkerProcess } from './device-worker-process.ts';
import type { AgentLog } from './log.ts';
import { deviceIdentity } from './stage-place.ts';
import type { UnitSupervisor } from './unit-supervisor.ts';

interface RefactoringOptions {
  node: string;
  supervisors(): readonly UnitSupervisor[];
  log: AgentLog;
}

/** A device of this node that may have a stage of a unit, and its worker. */
interface StageDevice {
  supervisor: UnitSupervisor;
  worker: DeviceWorkerProcess;
  /** The unit as the device has it now; absent: nothing of it. */
  unit: GroupUnit | undefined;
  identity: string;
}

/**
 * Gives pipelines of this node other stages while they answer: tells the workers of all devices of the next layout, and
 * the coordinator, which drives the change. A worker that starts again later loads the stage that it has by then.
 */
export class PipelineRefactorings {
  readonly #options: RefactoringOptions;
  /** Units whose stages change now. */
  readonly #changing = new Set<string>();
  /** Counts all changes of this agent: each has a ring of its own. */
  #changes = 0;

  constructor(options: RefactoringOptions) {
    this.#options = options;
  }

  /**
   * @param supervisor of the coordinator's device
   * @param signal aborted where nobody waits for it any more: it is cancelled
   * @throws HpcserveError E_REFACTOR_*, E_STAGE_LOST
   */
  async refactor(
    supervisor: UnitSupervisor,
    { model, stages }: RefactorRequest,
    signal: AbortSignal,
  ): Promise<RefactorOutcome> {
    const unit = supervisor.group.units.find((each) => each.model.name === model && each.stage === 0);
    if (!unit?.stages)
      throw new HpcserveError('E_REFACTOR_MODEL', {
        what: `the stages of ${model} cannot change at this session`,
        because: 'the first stage of no pipeline of that name is here',
      });
    if (this.#changing.has(unit.unit))
      throw new HpcserveError('E_REFACTOR_BUSY', { what: `the stages of ${model} change already` });
    this.#changing.add(unit.unit);
    try {
      return await this.#change(unit, stages, signal);
    } finally {
      this.#changing.delete(unit.unit);
    }
  }

  async #change(
    unit: GroupUnit,
    stages: readonly RefactorStage[],
    signal: AbortSignal,
  ): Promise<RefactorOutcome> {
    const n_operators = unit.stages!.at(-1)!.end;
    const cuts = stageOperatorsOf(stages, n_operators);
    const devices = stages.map((stage) => this.#deviceOf(unit, stage));
    const [first] = devices;
    if (first!.unit !== unit)
      throw new HpcserveError('E_REFACTOR_LAYOUT', {
        what: `the first stage of ${unit.model.name} cannot move to ${stages[0]!.device}`,
        because: 'the device that has it has the requests',
        try: 'move its requests instead: drain the node, or deploy it elsewhere',
      });
    const refactoring = ++this.#changes;
    const layout = devices.map(({ identity }, index): PipelineLayout[number] => ({
      device: identity,
      ...cuts[index]!,
    }));
    const next = devices.map(({ supervisor }, stage): GroupUnit => {
      const { first_device } = supervisor.group;
      return { ...unit, stages: cuts, stage, first_device, ring: refactoring };
    });
    this.#options.log.info({ unit: unit.unit, stages, refactoring }, 'its stages change');
    for (const [stage, { worker }] of devices.entries())
      if (stage > 0) worker.prepare(refactoring, next[stage]!);
    const report = await this.#untilEnded(unit, first!.worker, devices, signal, () =>
      first!.worker.refactor(refactoring, layout, next[0]!),
    );
    return this.#settle(unit, devices, next, report);
  }

  /** A worker that ends, or a caller that goes away, cancels it: what that means the coordinator knows. */
  async #untilEnded(
    { model: { name } }: GroupUnit,
    coordinator: DeviceWorkerProcess,
    devices: readonly StageDevice[],
    signal: AbortSignal,
    begin: () => Promise<RefactoringReport>,
  ): Promise<RefactoringReport | HpcserveError> {
    let isOver = false;
    const cancel = (because: string): void => {
      if (!isOver) coordinator.cancelRefactoring(name, because);
    };
    const onAbort = (): void => cancel('who asked for it is gone, or it took longer than it may');
    signal.addEventListener('abort', onAbort, { once: true });
    for (const { worker, supervisor } of devices.slice(1))
      void worker.ended.then(() => cancel(`the worker of ${supervisor.name} ended`));
    try {
      return await begin();
    } catch (error) {
      return HpcserveError.from(error);
    } finally {
      isOver = true;
      signal.removeEventListener('abort', onAbort);
    }
  }

  /** What workers load when they start again is what they have now; those without a stage unload. */
  #settle(
    unit: GroupUnit,
    devices: readonly StageDevice[],
    next: readonly GroupUnit[],
    report: RefactoringReport | HpcserveError,
  ): RefactorOutcome {
    const { log } = this.#options;
    if (report instanceof HpcserveError || report.outcome.kind !== 'refactored') {
      for (const { worker, unit: had } of devices) if (!had) worker.unload(unit.model.name);
      const error = report instanceof HpcserveError ? report : keptOrLost(unit, report);
      log.warn({ unit: unit.unit, error: error.toJSON() }, error.message);
      throw error;
    }
    const cuts = next[0]!.stages!;
    for (const supervisor of this.#options.supervisors()) {
      const { units } = supervisor.group;
      const at = units.findIndex((each) => each.unit === unit.unit);
      const stage = devices.findIndex((device) => device.supervisor === supervisor);
      if (stage >= 0) units.splice(at < 0 ? units.length : at, at < 0 ? 0 : 1, next[stage]!);
      else if (at >= 0) {
        // Its device is for a stage that the pipeline may get again.
        units[at] = { ...units[at]!, stages: cuts, stage: cuts.length };
        supervisor.worker?.unload(unit.model.name);
      }
      supervisor.changed();
    }
    const { outcome, pause_ms, bytes_moved, duration_ms } = report;
    log.info({ unit: unit.unit, ...report }, 'its stages have changed');
    return { epoch: outcome.epoch, pause_ms, bytes_moved, duration_ms };
  }

  /** @throws HpcserveError E_REFACTOR_DEVICE */
  #deviceOf(unit: GroupUnit, { device, node }: RefactorStage): StageDevice {
    const own = this.#options.node;
    const refused = (because: string): HpcserveError =>
      new HpcserveError('E_REFACTOR_DEVICE', {
        what: `${device} of node ${node ?? own} cannot take a stage of ${unit.model.name}`,
        because,
      });
    if (node !== undefined && node !== own)
      throw refused(`stages change within a node, and the first one is on ${own}`);
    const [kind, index] = device.split(' ');
    const supervisor = this.#options.supervisors().find(({ group }) => {
      const [of] = group.units;
      return group.engine === 'native' && of?.device_kind === kind && group.first_device === Number(index);
    });
    const worker = supervisor?.worker;
    if (!supervisor || !worker?.upstream) throw refused('no device worker runs on it');
    const part = supervisor.group.units.find((each) => each.unit === unit.unit);
    const isHeld = part?.stage !== undefined && part.stage < part.stages!.length;
    const identity = deviceIdentity(worker.folder, { ...unit, first_device: supervisor.group.first_device });
    return { supervisor, worker, unit: isHeld ? part : undefined, identity };
  }
}

function keptOrLost({ model, unit }: GroupUnit, { outcome }: RefactoringReport): HpcserveError {
  const because = outcome.kind === 'refactored' ? '' : outcome.because;
  const details = { unit };
  if (outcome.kind === 'lost')
    return new HpcserveError('E_STAGE_LOST', {
      what: `the pipeline of ${model.name} was lost while its stages changed`,
      because,
      details,
    });
  return new HpcserveError('E_REFACTOR_KEPT', {
    what: `${model.name} keeps the stages that it has`,
    because,
    details,
  });
}
