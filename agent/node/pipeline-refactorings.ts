import { setTimeout as delay } from 'node:timers/promises';
import { stageOperatorsOf } from '../../solver/refactoring/block-layout.ts';
import type { PipelineLayout } from '../../solver/refactoring/layout.ts';
import type { DeviceFacts, DeviceOfNode, RunningStage } from '../../solver/refactoring/leaving-layout.ts';
import { layoutsWithout } from '../../solver/refactoring/leaving-node.ts';
import type { StageTime } from '../../spec/engine-contract.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { deviceKindOn, type LaunchSpec, type UnitSpec } from '../../spec/launch.ts';
import { pool_share } from '../../spec/plan.ts';
import type { RefactorOutcome, RefactorRequest, RefactorStage } from '../../spec/refactor.ts';
import type { RefactoringReport } from '../pipeline/live-refactoring.ts';
import type { GroupUnit } from './assign-devices.ts';
import { ElsewhereStages } from './elsewhere-stages.ts';
import type { AgentLog } from './log.ts';
import type { LayoutDevice, NodeStages } from './node-stages.ts';
import type { PipelineAgents } from './pipeline-agents.ts';
import {
  canChange,
  cannot_change,
  keepStageLayout,
  keptStageLayout,
  plannedLayout,
  type StageLayout,
} from './stage-layout.ts';
import type { UnitSupervisor } from './unit-supervisor.ts';
import { UntoldNodes } from './untold-nodes.ts';

/** Between two looks at a change that is under way. */
const again_ms = 200;

interface RefactoringOptions {
  node: string;
  /** Among those that units count. */
  node_index: number;
  launch: LaunchSpec;
  stages: NodeStages;
  agents: PipelineAgents;
  /** Of this node. */
  units: readonly UnitSpec[];
  /** Of units whose stages have changed before this agent began, by their names. */
  layouts: ReadonlyMap<string, StageLayout>;
  /** Aborted once this node is to go. */
  leaving: AbortSignal;
  log: AgentLog;
}

/** A change that is under way. */
interface UnderWay {
  /** That have a stage in its layout, once that is known. */
  nodes: ReadonlySet<number>;
  /** It is to come to nothing. */
  abort: AbortController;
}

/** Who takes part in a change: devices of this node, and other nodes with theirs. */
interface Participants {
  layout: StageLayout;
  own: readonly LayoutDevice[];
  elsewhere: readonly ElsewhereStages[];
}

/**
 * Gives pipelines whose first stage is on this node other stages while they answer: tells the workers of all devices of
 * the next layout, those of other nodes by their agents, and the coordinator, which drives the change. A worker that
 * starts again later loads the stage that it has by then.
 */
export class PipelineRefactorings {
  readonly #options: RefactoringOptions;
  /** By unit whose stages change now. */
  readonly #changing = new Map<string, UnderWay>();
  readonly #untold: UntoldNodes;
  /** Counts all changes of this agent: each has a ring of its own. */
  #changes: number;

  constructor(options: RefactoringOptions) {
    this.#options = options;
    const { layouts, units, node_index, log } = options;
    this.#changes = Math.max(0, ...[...layouts.values()].map(({ ring }) => ring));
    this.#untold = new UntoldNodes({
      others: (unit) => this.#others(unit),
      behind: (unit, layout, ring) => this.#follow(unit, layout, ring),
      log,
    });
    // The agent that was here before may have gone before all knew, or not be gone, and drive another change.
    for (const unit of units) {
      if (unit.stages === undefined || (unit.nodes ?? 1) === 1) continue;
      const layout = layouts.get(unit.unit) ?? plannedLayout(unit);
      if (layout.stages[0]?.node_index === node_index)
        this.#untold.add(unit, layout, otherNodes(unit, node_index));
    }
  }

  close(): void {
    this.#untold.close();
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
    const underWay = this.#begin(unit.unit);
    try {
      return await this.#change(unit, supervisor, () => this.#layoutOf(unit, stages), signal, underWay);
    } finally {
      this.#changing.delete(unit.unit);
    }
  }

  /**
   * Another node is to go: its stages come to devices of the others, while they answer.
   * @param left_ms until it goes
   * @throws HpcserveError E_REFACTOR_*, E_STAGE_LOST: it keeps them
   */
  async leave(name: string, leaving: number, left_ms: number): Promise<void> {
    const { stages, launch, log, leaving: isLeaving } = this.#options;
    const signal = AbortSignal.any([AbortSignal.timeout(left_ms), isLeaving]);
    const own = stages.coordinator(name);
    if (!own || isLeaving.aborted)
      throw new HpcserveError('E_REFACTOR_DEVICE', {
        what: `the stages of ${name} on node ${leaving} cannot come to others`,
        because: own ? 'the node of its first stage is to go, too' : 'its first stage is not here',
      });
    for (let before = this.#changing.get(name); before; before = this.#changing.get(name)) {
      // What is under way may be what takes them away; else it would bring the node another stage.
      if (before.nodes.has(leaving)) before.abort.abort();
      await delay(again_ms, undefined, { signal });
    }
    const underWay = this.#begin(name);
    try {
      const { unit, supervisor } = own;
      const now = keptStageLayout(launch, unit) ?? plannedLayout(unit);
      const staying = [
        this.#options.node_index,
        ...this.#others(unit).map(({ node_index }) => node_index),
      ].filter((node_index) => node_index !== leaving);
      // A node that nobody can ask goes as well, or comes again without a stage.
      const layouts = layoutsWithout(
        runningStages(now, supervisor.worker?.stage_times?.[unit.model.name] ?? []),
        staying,
        this.#freeDevices(unit, now, staying),
        this.#deviceFacts(),
      );
      log.info({ unit: name, leaving, layouts: layouts.length }, 'a node with stages of it is to go');
      for (const [at, next] of layouts.entries())
        try {
          const layoutFor = (): StageLayout => ({ ring: ++this.#changes, stages: next });
          await this.#change(unit, supervisor, layoutFor, signal, underWay);
          return;
        } catch (error) {
          // The next one may need less.
          if (signal.aborted || at === layouts.length - 1) throw error;
        }
    } finally {
      this.#changing.delete(name);
    }
  }

  /** What devices are, as their agents say: others may have a part of their memory. */
  #deviceFacts(): (device: DeviceOfNode) => DeviceFacts {
    const nodes = this.#options.agents.devicesByNode();
    return ({ node_index, device }) => {
      const [kind, at] = device.split(' ');
      const found = nodes.get(node_index)?.filter((each) => each.kind === kind)[Number(at)];
      if (!found) return {};
      return { model: found.model, room_bytes: Math.floor(pool_share * found.memory_bytes) };
    };
  }

  /** Of nodes that stay, own ones first: frames between devices of a node take no network. */
  #freeDevices(unit: GroupUnit, { stages }: StageLayout, nodes: readonly number[]): DeviceOfNode[] {
    const { units } = this.#options;
    // As its launch has it: of a unit on one device, that one is counted alone.
    const launched = units.find((each) => each.unit === unit.unit) ?? unit;
    const used = new Set(stages.map(({ node_index, device }) => `${node_index} ${device}`));
    return nodes
      .flatMap((node_index) =>
        Array.from({ length: launched.device_count }, (_, at) => ({
          node_index,
          device: `${deviceKindOn(launched, node_index)} ${launched.first_device + at}`,
        })),
      )
      .filter(({ node_index, device }) => !used.has(`${node_index} ${device}`));
  }

  /** This node is to go: the agents of first stages elsewhere are asked to do without it. */
  async leaveAll(left_ms: number): Promise<void> {
    const { stages, log } = this.#options;
    await Promise.all(
      stages
        .followed()
        .map((unit) =>
          this.#leaveOne(unit, left_ms).catch((error: unknown) =>
            log.error({ unit: unit.unit, error: String(error) }, 'the layout of its stages cannot be read'),
          ),
        ),
    );
  }

  /** @throws the system's error: its layout cannot be read */
  async #leaveOne(unit: UnitSpec, left_ms: number): Promise<void> {
    const { launch, node_index, log } = this.#options;
    const [first] = (keptStageLayout(launch, unit) ?? plannedLayout(unit)).stages;
    const there = this.#others(unit).find((other) => other.node_index === first!.node_index);
    // The node of the first stage goes, too, or is gone.
    if (!there) return;
    const because = await there.leave(unit.unit, node_index, left_ms);
    if (because === undefined) log.info({ unit: unit.unit }, 'its stages have come to other nodes');
    else log.warn({ unit: unit.unit, because }, 'its stages stay here until this node ends');
  }

  #begin(unit: string): UnderWay {
    const underWay = { nodes: new Set<number>(), abort: new AbortController() };
    this.#changing.set(unit, underWay);
    return underWay;
  }

  async #change(
    unit: GroupUnit,
    supervisor: UnitSupervisor,
    layoutFor: () => StageLayout,
    asked: AbortSignal,
    underWay: UnderWay,
  ): Promise<RefactorOutcome> {
    const { stages: own, launch, log } = this.#options;
    if (!canChange(launch, unit))
      throw new HpcserveError('E_REFACTOR_DEVICE', {
        what: `the stages of ${unit.model.name} cannot change`,
        because: cannot_change,
      });
    const layout = layoutFor();
    const { stages } = layout;
    underWay.nodes = new Set(stages.map(({ node_index }) => node_index));
    const signal = AbortSignal.any([asked, underWay.abort.signal]);
    await this.#allKnow(unit, layout);
    const devices = own.devices(unit, layout);
    const first = devices.find(({ stage }) => stage === 0);
    if (first?.supervisor !== supervisor)
      throw new HpcserveError('E_REFACTOR_LAYOUT', {
        what: `the first stage of ${unit.model.name} cannot move to ${stages[0]!.device}`,
        because: 'the device that has it has the requests',
        try: 'move its requests instead: drain the node, or deploy it elsewhere',
      });
    const elsewhere = this.#nodesOf(unit, layout);
    const participants: Participants = { layout, own: devices, elsewhere };
    log.info({ unit: unit.unit, stages, ring: layout.ring }, 'its stages change');
    let report: RefactoringReport | HpcserveError;
    try {
      const identities = await this.#prepare(unit, participants);
      const to = layout.stages.map(({ begin, end }, stage): PipelineLayout[number] => ({
        device: identities.get(stage)!,
        begin,
        end,
      }));
      report = await this.#untilEnded(unit, first, participants, signal, () =>
        first.worker.refactor(layout.ring, to, first.next),
      );
    } catch (error) {
      report = HpcserveError.from(error);
    }
    return this.#settle(unit, participants, report);
  }

  /** @throws HpcserveError E_REFACTOR_LAYOUT, E_REFACTOR_DEVICE */
  #layoutOf(unit: GroupUnit, stages: readonly RefactorStage[]): StageLayout {
    const cuts = stageOperatorsOf(stages, unit.stages!.at(-1)!.end);
    return {
      ring: ++this.#changes,
      stages: stages.map(({ device, node }, stage) => ({
        node_index: this.#nodeIndexOf(unit, device, node),
        device,
        ...cuts[stage]!,
      })),
    };
  }

  #nodeIndexOf(unit: GroupUnit, device: string, node: string | undefined): number {
    const { node: own, node_index, agents } = this.#options;
    if (node === undefined) return node_index;
    const refused = (because: string): HpcserveError =>
      new HpcserveError('E_REFACTOR_DEVICE', {
        what: `${device} of node ${node} cannot take a stage of ${unit.model.name}`,
        because,
      });
    const there = agents.others().filter(({ metadata }) => metadata.node === node);
    if (there.length + Number(node === own) > 1)
      throw refused('several of its jobs are on that node, and each counts its devices from 0');
    if (node === own) return node_index;
    const found = there[0]?.metadata.node_index;
    if (found === undefined) throw refused('no agent of its replica is known to serve on that node');
    if (found < unit.node_index || found >= unit.node_index + (unit.nodes ?? 1))
      throw refused('its replica is on other nodes of the job');
    return found;
  }

  /** Other nodes that have a stage in a layout. */
  #nodesOf(unit: GroupUnit, { stages }: StageLayout): ElsewhereStages[] {
    const wanted = new Set(stages.map(({ node_index }) => node_index));
    return this.#others(unit).filter(({ node_index }) => wanted.has(node_index));
  }

  /**
   * What a node gives back of a change that comes to nothing depends on what it has: it has to know the last layout.
   * @throws HpcserveError E_REFACTOR_DEVICE
   */
  async #allKnow(unit: GroupUnit, { stages }: StageLayout): Promise<void> {
    const untold = await this.#untold.tell(unit.unit);
    const wanted = stages.find(({ node_index }) => untold.has(node_index));
    if (!wanted) return;
    throw new HpcserveError('E_REFACTOR_DEVICE', {
      what: `${wanted.device} of another node cannot take a stage of ${unit.model.name}`,
      because: `node ${wanted.node_index} of its replica does not know the stages that it has now: its agent does not answer, or has later ones`,
    });
  }

  /** Other nodes that its unit counts, as far as their agents can be asked. */
  #others({ node_index: first, nodes = 1 }: UnitSpec): ElsewhereStages[] {
    const { agents } = this.#options;
    return agents.others().flatMap((record) => {
      const { node_index } = record.metadata;
      if (node_index === undefined || node_index < first || node_index >= first + nodes) return [];
      return [new ElsewhereStages(agents, record)];
    });
  }

  /** @returns the identity of each stage's device @throws HpcserveError E_REFACTOR_DEVICE */
  async #prepare(
    unit: GroupUnit,
    { layout, own, elsewhere }: Participants,
  ): Promise<ReadonlyMap<number, string>> {
    const identities = new Map(own.map(({ stage, identity }) => [stage, identity]));
    const answers = await Promise.all(
      elsewhere.map(async (there) => ({ there, answer: await there.prepare(unit.unit, layout) })),
    );
    for (const { there, answer } of answers) {
      const theirs = [...layout.stages.entries()].filter(
        ([, stage]) => stage.node_index === there.node_index,
      );
      const refused = (because: string): HpcserveError =>
        new HpcserveError('E_REFACTOR_DEVICE', {
          what: `node ${there.node} cannot take stages of ${unit.model.name}`,
          because,
        });
      if ('refused' in answer) {
        // The next one tries with a later ring.
        this.#changes = Math.max(this.#changes, answer.ring ?? 0);
        throw refused(answer.refused);
      }
      if (answer.length !== theirs.length) throw refused(`it has ${answer.length} devices for them`);
      for (const [index, [stage]] of theirs.entries()) identities.set(stage, answer[index]!);
    }
    const missing = layout.stages.findIndex((_, stage) => !identities.has(stage));
    if (missing >= 0)
      throw new HpcserveError('E_REFACTOR_DEVICE', {
        what: `${layout.stages[missing]!.device} of another node cannot take a stage of ${unit.model.name}`,
        because: `no agent of node ${layout.stages[missing]!.node_index} of its replica is known to serve`,
      });
    await this.#options.stages.prepare(unit.unit, layout, own);
    return identities;
  }

  /** A worker that ends, or a caller that goes away, cancels it: what that means the coordinator knows. */
  async #untilEnded(
    { model: { name } }: GroupUnit,
    { worker: coordinator }: LayoutDevice,
    { own, elsewhere }: Participants,
    signal: AbortSignal,
    begin: () => Promise<RefactoringReport>,
  ): Promise<RefactoringReport | HpcserveError> {
    let isOver = false;
    const cancel = (because: string): void => {
      if (!isOver) coordinator.cancelRefactoring(name, because);
    };
    const onAbort = (): void =>
      cancel('who asked for it is gone, it took longer than it may, or a node of it is to go');
    const begun = begin();
    signal.addEventListener('abort', onAbort, { once: true });
    // Before it began, nobody listened.
    if (signal.aborted) onAbort();
    const listening = own
      .filter(({ stage }) => stage > 0)
      .map(({ worker, supervisor }) =>
        worker.onEnded(() => cancel(`the worker of ${supervisor.name} ended`)),
      );
    for (const { lost } of elsewhere) void lost.then(cancel);
    try {
      return await begun;
    } catch (error) {
      return HpcserveError.from(error);
    } finally {
      isOver = true;
      signal.removeEventListener('abort', onAbort);
      for (const stop of listening) stop();
    }
  }

  /** All nodes hear what came of it, those whose devices have no stage any more among them. */
  async #settle(
    unit: GroupUnit,
    { layout, own, elsewhere }: Participants,
    report: RefactoringReport | HpcserveError,
  ): Promise<RefactorOutcome> {
    const { log, stages, launch } = this.#options;
    if (report instanceof HpcserveError || report.outcome.kind !== 'refactored') {
      stages.keep(unit, layout, own);
      await this.#tellKept(unit, layout, elsewhere);
      const error = report instanceof HpcserveError ? report : keptOrLost(unit, report);
      log.warn({ unit: unit.unit, error: error.toJSON() }, error.message);
      throw error;
    }
    try {
      // Before anybody is told: an agent that is gone by then finds it here.
      keepStageLayout(launch, unit, layout);
    } catch (error) {
      log.error({ unit: unit.unit, error: String(error) }, 'the layout of its stages cannot be kept');
    }
    await stages.change(unit, layout, own);
    await this.#tellDone(unit, layout, elsewhere);
    const { outcome, pause_ms, bytes_moved, bytes_by_way, duration_ms } = report;
    log.info({ unit: unit.unit, ...report }, 'its stages have changed');
    return { epoch: outcome.epoch, pause_ms, bytes_moved, bytes_by_way: { ...bytes_by_way }, duration_ms };
  }

  /**
   * Another agent with the same place has driven a change that this one did not know of when it began: what it kept
   * counts, as far as it was kept; else this layout, by a later ring, so that all have the same.
   */
  async #follow(unit: UnitSpec, layout: StageLayout, ring: number): Promise<void> {
    const { launch, stages, node_index, log } = this.#options;
    // A change that is under way ends first; then they are told again.
    if (this.#changing.has(unit.unit)) return;
    this.#begin(unit.unit);
    try {
      const kept = keptStageLayout(launch, unit);
      const next = kept && kept.ring >= ring ? kept : { ...layout, ring: ring + 1 };
      log.warn({ unit: unit.unit, ring, own: layout.ring, next }, 'another node has a later layout');
      this.#changes = Math.max(this.#changes, next.ring);
      if (next !== kept) keepStageLayout(launch, unit, next);
      const own = stages.unit(unit.unit);
      if (own) await stages.change(own, next, []);
      this.#untold.add(unit, next, otherNodes(unit, node_index));
    } catch (error) {
      log.error({ unit: unit.unit, error: String(error) }, 'a later layout cannot be followed: tried again');
    } finally {
      this.#changing.delete(unit.unit);
    }
  }

  /** One that does not hear it gives back what it prepared as its connection breaks. */
  async #tellKept(
    { unit }: GroupUnit,
    layout: StageLayout,
    elsewhere: readonly ElsewhereStages[],
  ): Promise<void> {
    await Promise.all(elsewhere.map((there) => there.settle(unit, layout, false)));
  }

  /** Those that took part by the connection that they know, then all others; who does not answer is told later. */
  async #tellDone(
    unit: GroupUnit,
    layout: StageLayout,
    elsewhere: readonly ElsewhereStages[],
  ): Promise<void> {
    const { node_index, log } = this.#options;
    const untold = new Set(otherNodes(unit, node_index));
    await Promise.all(
      elsewhere.map(async (there) => {
        const ring = await there.settle(unit.unit, layout, true);
        if (ring === layout.ring) untold.delete(there.node_index);
      }),
    );
    this.#untold.add(unit, layout, untold);
    const nodes = [...(await this.#untold.tell(unit.unit))];
    if (nodes.length > 0)
      log.warn({ unit: unit.unit, nodes }, 'nodes do not know what came of its stages: they are told again');
  }
}

/** Nodes that a unit counts, but for this one. */
function otherNodes({ node_index: first, nodes = 1 }: UnitSpec, node_index: number): number[] {
  return Array.from({ length: nodes }, (_, at) => first + at).filter((at) => at !== node_index);
}

/** Its stages, and what its coordinator has measured of them. */
function runningStages({ stages }: StageLayout, measured: readonly StageTime[]): RunningStage[] {
  return stages.map((stage) => {
    const found = measured.find(({ begin, end }) => begin === stage.begin && end === stage.end);
    if (!found) return stage;
    const { computed_us, operators_us = [], memory_bytes } = found;
    const running: RunningStage = { ...stage, compute_s: computed_us / 1e6 };
    // Operators are measured in fewer batches: what counts of them is their shares.
    const sum_us = operators_us.reduce((sum, us) => sum + us, 0);
    if (sum_us > 0) running.operators_s = operators_us.map((us) => (running.compute_s! * us) / sum_us);
    if (memory_bytes !== undefined) running.memory_bytes = memory_bytes;
    return running;
  });
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
