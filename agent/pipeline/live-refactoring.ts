import type { OperatorRange, PipelineLayout } from '../../solver/refactoring/layout.ts';
import type {
  RefactoringAction,
  RefactoringEvent,
  RefactoringOutcome,
  RefactoringPhase,
} from '../../solver/refactoring/messages.ts';
import { Refactoring } from '../../solver/refactoring/refactoring.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { ChangingSequences } from '../engine/changing-sequences.ts';
import { enumerateOperators } from '../engine/operators.ts';
import type { Stage } from '../engine/stage.ts';
import type { ChangingExecutor, LayoutChanger } from './changing-executor.ts';
import { decodeFrame, encodeJsonFrame, type FrameBytes, metaOf } from './frame.ts';
import { layersOf } from './kv-rows.ts';
import type { KvPiece } from './layout-messages.ts';
import { PipelineExecutor } from './pipeline-executor.ts';
import { factsOf, type ToldFacts } from './pipeline-stage.ts';
import { type RefactoringBounds, refactoringBounds } from './refactoring-bounds.ts';
import { RowCopies } from './row-copies.ts';
import type { ArrivingRows, RowTarget, RowTransfers } from './row-transfers.ts';
import type { SortedPort } from './sorted-port.ts';
import {
  beginMetaSchema,
  checkStages,
  failedMetaSchema,
  openMetaSchema,
  type StageFacts,
} from './stage-facts.ts';

/** The stage that this device is to have, on its way. */
export interface StageLoading {
  /** Once it is there, or where it throws, it is over. */
  advance(help: boolean): Stage | undefined;
  abort(): void;
}

export interface LiveRefactoringParts {
  /** Told to every device of the new layout before: no other change has it. */
  id: number;
  executor: ChangingExecutor;
  sequences: ChangingSequences;
  to: PipelineLayout;
  /** Of this device, which has the first stage of both layouts. */
  loading: StageLoading;
  told: ToldFacts;
  /** Its place in the ring of the new layout; undefined where that has one stage. */
  port: SortedPort | undefined;
  /** Of rows, beside the rings; absent: there are none. */
  transfers?: RowTransfers | undefined;
  /** Waits until something may have come, at most so long; others are served meanwhile. */
  wait(ms_max: number): void;
  bounds?: Partial<RefactoringBounds>;
}

export interface RefactoringReport {
  outcome: RefactoringOutcome;
  /** From the order to its end. */
  duration_ms: number;
  /** From when no batch was submitted any more until one could be; 0 where it did not come to that. */
  pause_ms: number;
  /** Of the pause, from when the last result had come. */
  cut_ms: number;
  /** Keys and values that devices sent each other. */
  bytes_moved: number;
  /** The same by the way that they took: `sendfile`, `rma (verbs)`, `ring`. */
  bytes_by_way: Readonly<Record<string, number>>;
  /** Rounds of the transfer that had most. */
  rounds: number;
  phases_ms: Partial<Record<RefactoringPhase, number>>;
}

/**
 * The coordinator's side of a change of layout: it does what `Refactoring` says, the same that is simulated, by
 * frames in the rings of the old and of the new layout. While the old one computes, `advance` is called between
 * iterations; what nobody may compute beside (the last results, the last rows, the new epoch) is one call, which ends
 * within the bounds of its phases.
 *
 *     preparing   own stage loads; `open` goes around the new ring once every stage of it is there
 *     copying     pieces of rounds, a few on their way at once; those beside the rings end before anything stops
 *     pausing     the engine takes in all results
 *     cutting     the last pieces                                ┐ one call
 *     starting    `begin` around the new ring: who has begun     ┘
 */
export class LiveRefactoring implements LayoutChanger, RowTarget {
  readonly #parts: LiveRefactoringParts;
  readonly #bounds: RefactoringBounds;
  readonly #machine: Refactoring;
  readonly #old: PipelineExecutor;
  readonly #copies: RowCopies;
  readonly #began_ms = performance.now();
  readonly #phases_ms: Partial<Record<RefactoringPhase, number>> = {};
  #phase: RefactoringPhase = 'preparing';
  #phase_since_ms = performance.now();
  #stage: Stage | undefined;
  #isLoading = true;
  #facts: StageFacts[] | undefined;
  #asked = false;
  #paused_ms: number | undefined;
  #drained_ms: number | undefined;
  #resumed_ms: number | undefined;
  #oldLost = false;
  #newLost = false;
  #outcome: RefactoringOutcome | undefined;

  /** @throws HpcserveError E_REFACTOR_LAYOUT */
  constructor(parts: LiveRefactoringParts) {
    this.#parts = parts;
    this.#bounds = { ...refactoringBounds, ...parts.bounds };
    const { executor, sequences, to } = parts;
    this.#old = executor.running;
    const { n_layer } = executor.model;
    const hasKv = (range: OperatorRange): boolean => {
      const { begin, end } = layersOf(range, n_layer);
      return end > begin;
    };
    try {
      this.#machine = new Refactoring({
        from: executor.stages.map(({ device_identity, begin, end }) => ({
          device: device_identity,
          begin,
          end,
        })),
        to,
        epoch: executor.epoch,
        hasKv,
        filled: sequences.filledBlocks(),
        running: () => sequences.with_kv,
        needsCoordinator: (transfer) => this.#copies.needsTurns(transfer, this.#machine.transfers[transfer]!),
      });
    } catch (error) {
      if (!(error instanceof RangeError)) throw error;
      throw new HpcserveError('E_REFACTOR_LAYOUT', {
        what: 'the pipeline cannot have these stages',
        because: error.message,
      });
    }
    this.#copies = new RowCopies({
      id: parts.id,
      own: this.#own,
      executor,
      bounds: this.#bounds,
      transfers: parts.transfers,
      next: parts.port,
      order: () => (this.#oldLost ? parts.port : this.#old.port),
      stage: () => this.#stage,
      hear: (event) => this.#hear(event),
    });
    executor.change = this;
    this.#actAll(this.#machine.start());
  }

  /** Once it has ended. */
  get report(): RefactoringReport | undefined {
    const outcome = this.#outcome;
    if (!outcome) return undefined;
    const since = (from: number | undefined): number =>
      from === undefined || this.#resumed_ms === undefined ? 0 : this.#resumed_ms - from;
    return {
      outcome,
      duration_ms: performance.now() - this.#began_ms,
      pause_ms: since(this.#paused_ms),
      cut_ms: since(this.#drained_ms),
      bytes_moved: this.#copies.bytes_moved,
      bytes_by_way: this.#copies.bytes_by_way,
      rounds: this.#copies.rounds,
      phases_ms: this.#phases_ms,
    };
  }

  get phase(): RefactoringPhase {
    return this.#machine.phase;
  }

  wrote(block: number, begin: number, end: number): void {
    this.#machine.wrote(block, begin, end);
  }

  survives(): boolean {
    this.#look();
    return this.#outcome?.kind !== 'lost' && this.#oldLost;
  }

  receive(refactoring: number, piece: KvPiece): ArrivingRows {
    return this.#copies.receive(refactoring, piece);
  }

  /** Nobody wants it any more; where the pipeline would be lost with it, it goes on. */
  cancel(because: string): void {
    if (this.#outcome) return;
    this.#look();
    if (!this.#machine.mustGoOn) this.#hear({ kind: 'cancelled', because });
  }

  abort(because: string): void {
    if (this.#outcome) return;
    this.#end({ kind: 'lost', because });
  }

  /** Between two iterations. @param help does a share of the loading */
  advance(help: boolean): void {
    if (this.#outcome) return;
    this.#load(help);
    this.#look();
    this.#requireProgress();
    // Rows of prompts that wait are not written: what is copied catches up.
    if (this.#parts.sequences.prompts_wait && !this.#parts.sequences.decodes)
      this.#parts.wait(this.#bounds.look_ms);
    // Where the old ring is lost in the middle of a round, what is left of that comes first.
    const canStop = this.#machine.phase === 'pausing' && !this.#machine.needsCoordinator;
    if (canStop && !this.#outcome) this.#cutOver();
  }

  /** Nothing computes until it has ended. */
  #cutOver(): void {
    this.#paused_ms ??= performance.now();
    // Also where the old ring is lost: the engine drops what was on its way, and what was swapped out there.
    const inOrder = this.#parts.sequences.settle();
    this.#drained_ms = performance.now();
    if (!inOrder && !this.#oldLost)
      this.#hear({ kind: 'cancelled', because: 'a batch of the pipeline failed' });
    else this.#hear({ kind: 'drained' });
    while (!this.#outcome) {
      this.#look();
      this.#requireProgress();
      if (!this.#outcome) this.#parts.wait(this.#bounds.look_ms);
    }
  }

  #load(help: boolean): void {
    if (this.#machine.phase !== 'preparing') return;
    const { loading, port, executor, told } = this.#parts;
    try {
      const stage = this.#advanced(loading, help);
      if (!stage || this.#asked) return;
      const own = { ...factsOf(stage, 0, told), epoch: executor.epoch };
      if (!port) {
        this.#asked = true;
        this.#opened([own]);
      } else if (port.isUp) {
        this.#asked = true;
        const meta = { n_operators: this.#n_operators, stages: [own] };
        port.send(encodeJsonFrame({ kind: 'open', epoch: 0, number: 0 }, meta));
      }
    } catch (error) {
      this.#refuse(told.device_identity, error);
    }
  }

  #advanced(loading: StageLoading, help: boolean): Stage | undefined {
    if (!this.#isLoading) return this.#stage;
    this.#isLoading = false;
    this.#stage = loading.advance(help);
    this.#isLoading = this.#stage === undefined;
    return this.#stage;
  }

  #opened(stages: StageFacts[]): void {
    const { to, executor } = this.#parts;
    try {
      checkStages(stages, this.#n_operators);
    } catch (error) {
      this.#refuse(to[0]!.device, error);
      return;
    }
    const rows = executor.storage.slab_rows;
    for (const [index, { device, begin, end }] of to.entries()) {
      const facts = stages[index];
      let because: string | undefined;
      if (facts?.device_identity !== device || facts.begin !== begin || facts.end !== end)
        because = 'it was told of another stage';
      else if (facts.kv_tokens < rows)
        because = `its memory holds the keys and values of ${facts.kv_tokens} tokens, and the pipeline has ${rows}`;
      else if (facts.epoch > executor.epoch) because = `it is in epoch ${facts.epoch} already`;
      if (because !== undefined) {
        this.#hear({ kind: 'refused', device, because });
        return;
      }
    }
    const stranger = this.#ofAnotherBuild(stages);
    if (stranger) {
      this.#hear({ kind: 'refused', ...stranger });
      return;
    }
    this.#facts = stages;
    this.#copies.met(stages);
    for (const { device } of to) this.#hear({ kind: 'prepared', device });
  }

  /** A device to which rows would come that another build has computed. @param stages of the layout to come */
  #ofAnotherBuild(stages: readonly StageFacts[]): { device: string; because: string } | undefined {
    const builds = new Map(
      [...this.#old.stages, ...stages].map(({ device_identity, build = 'another' }) => [
        device_identity,
        build,
      ]),
    );
    const differing = this.#machine.transfers.find(({ from, to }) => builds.get(from) !== builds.get(to));
    if (!differing) return undefined;
    const { from, to: device } = differing;
    const because = `its build is ${builds.get(device)}, and that of ${from} is ${builds.get(from)}: keys and values do not go from one to the other`;
    return { device, because };
  }

  #refuse(device: string, thrown: unknown): void {
    const { message, because } = HpcserveError.from(thrown);
    this.#hear({ kind: 'refused', device, because: [message, ...because].join(': ') });
  }

  /** Takes what came by either ring. */
  #look(): void {
    const ports = [this.#old.port, this.#parts.port];
    for (const port of ports)
      for (let bytes = port?.pollOther(); bytes && !this.#outcome; bytes = port?.pollOther())
        this.#take(bytes, port!);
    if (this.#outcome) return;
    const [old, next] = ports;
    if (old?.broken && !this.#oldLost) this.#loseOld(old.broken.because.join('; '));
    // What waits for results does not read those of a layout that is still to come.
    else if (next && !this.#newLost) this.#readFailures(next);
  }

  #readFailures(port: SortedPort): void {
    try {
      for (let bytes = port.poll(); bytes; bytes = port.poll()) {
        const { stage, error } = metaOf(decodeFrame(bytes), failedMetaSchema);
        const device = this.#parts.to[stage]?.device ?? 'a device';
        this.#refuseOrCancel(device, `${error.what}: ${error.because.join('; ')}`);
      }
    } catch (error) {
      if (!(error instanceof HpcserveError)) throw error;
      if (error.code === 'E_STAGE_LOST') this.#loseNew(error.because.join('; '));
      else this.#hear({ kind: 'cancelled', because: error.message });
    }
  }

  #refuseOrCancel(device: string, because: string): void {
    if (this.#machine.phase === 'preparing') this.#hear({ kind: 'refused', device, because });
    else this.#hear({ kind: 'cancelled', because: `${device}: ${because}` });
  }

  /** Nobody is reached over the old ring: what only its devices have is lost to the pipeline. */
  #loseOld(because: string): void {
    this.#oldLost = true;
    const lost = this.#only(this.#machineFrom, this.#parts.to);
    if (lost.length === 0) this.#loseAll(because);
    for (const device of lost) this.#hear({ kind: 'lost', device, because });
  }

  #loseNew(because: string): void {
    this.#newLost = true;
    const lost = this.#only(this.#parts.to, this.#machineFrom);
    for (const device of lost) this.#hear({ kind: 'lost', device, because });
    if (lost.length === 0 || this.#oldLost) this.#hear({ kind: 'cancelled', because });
  }

  #loseAll(because: string): void {
    for (const { device } of this.#machineFrom.slice(1)) this.#hear({ kind: 'lost', device, because });
  }

  get #machineFrom(): PipelineLayout {
    return this.#old.stages.map(({ device_identity, begin, end }) => ({
      device: device_identity,
      begin,
      end,
    }));
  }

  #only(these: PipelineLayout, others: PipelineLayout): string[] {
    return these
      .map(({ device }) => device)
      .filter((device) => !others.some((other) => other.device === device));
  }

  #take(bytes: FrameBytes, port: SortedPort): void {
    try {
      const frame = decodeFrame(bytes);
      switch (frame.kind) {
        case 'open':
          if (port === this.#parts.port) this.#opened(metaOf(frame, openMetaSchema).stages);
          return;
        case 'begin': {
          const { epoch, refactoring } = metaOf(frame, beginMetaSchema);
          if (refactoring === this.#parts.id) this.#hear({ kind: 'begun', epoch });
          return;
        }
        case 'kv':
          this.#copies.takeRows(bytes);
          return;
        case 'copied':
          this.#copies.takeCopied(bytes);
          return;
        default:
          // It has been all around: who it was for has seen it.
          return;
      }
    } catch (error) {
      if (!(error instanceof HpcserveError)) throw error;
      this.#copies.failed(error.toText());
    }
  }

  /** A phase, or what it waits for, takes longer than it may. */
  #requireProgress(): void {
    if (this.#outcome) return;
    const now_ms = performance.now();
    const { phase } = this.#machine;
    if (now_ms - this.#phase_since_ms > this.#bounds.phases_ms[phase])
      this.#hear({ kind: 'deadline', phase });
    this.#copies.requireProgress(now_ms);
  }

  #hear(event: RefactoringEvent): void {
    if (this.#outcome) return;
    const actions = this.#machine.handle(event);
    const { phase } = this.#machine;
    if (phase !== this.#phase) {
      const now_ms = performance.now();
      this.#phases_ms[this.#phase] = (this.#phases_ms[this.#phase] ?? 0) + now_ms - this.#phase_since_ms;
      this.#phase = phase;
      this.#phase_since_ms = now_ms;
    }
    this.#actAll(actions);
  }

  #actAll(actions: readonly RefactoringAction[]): void {
    for (const action of actions) this.#act(action);
  }

  #act(action: RefactoringAction): void {
    switch (action.do) {
      case 'prepare':
        // Each device was told by its agent, and this one loads.
        return;
      case 'copy': {
        const { from, to, begin, end } = this.#machine.transfers[action.transfer]!;
        this.#copies.begin({ ...action, from, to, begin, end }, this.#machine.phase === 'copying');
        return;
      }
      case 'hold_prefill':
        this.#parts.sequences.prompts_wait = true;
        return;
      case 'pause':
        // Between two iterations: see `advance`.
        return;
      case 'begin':
        this.#begin(action.layout === this.#parts.to, action.epoch);
        return;
      case 'resume':
      case 'release':
        // With the end, which follows.
        return;
      case 'end':
        this.#end(action.outcome);
    }
  }

  #begin(isNew: boolean, epoch: number): void {
    const port = isNew ? this.#parts.port : this.#old.port;
    if (!port) this.#hear({ kind: 'begun', epoch });
    else if (port.broken) this.#hear({ kind: 'deadline', phase: this.#machine.phase });
    else
      port.send(encodeJsonFrame({ kind: 'begin', epoch, number: 0 }, { epoch, refactoring: this.#parts.id }));
  }

  #end(outcome: RefactoringOutcome): void {
    this.#outcome = outcome;
    const { executor, sequences } = this.#parts;
    executor.change = undefined;
    sequences.prompts_wait = false;
    if (outcome.kind === 'refactored') this.#cutOverTo(outcome);
    else this.#keepOld(outcome);
    this.#old.port?.clear();
    this.#resumed_ms = performance.now();
    this.#phases_ms[this.#phase] =
      (this.#phases_ms[this.#phase] ?? 0) + this.#resumed_ms - this.#phase_since_ms;
  }

  #cutOverTo({ epoch, incomplete }: RefactoringOutcome & { kind: 'refactored' }): void {
    const { executor, sequences, port } = this.#parts;
    const next = new PipelineExecutor(this.#stage!, port, this.#facts!, epoch);
    executor.switchTo(next);
    const lacking = incomplete.map((transfer) => this.#machine.transfers[transfer]!.mask);
    if (lacking.length > 0)
      sequences.keepRows((block) => Math.min(...lacking.map((mask) => mask.validRows(block))));
    this.#release(this.#parts.to, epoch);
    this.#old.free();
  }

  #keepOld(outcome: RefactoringOutcome & { kind: 'kept' | 'lost' }): void {
    const { executor, loading, port } = this.#parts;
    if (outcome.kind === 'lost')
      executor.lose(
        new HpcserveError('E_STAGE_LOST', {
          what: 'the pipeline was lost while its stages changed',
          because: outcome.because,
        }),
      );
    else {
      if (outcome.epoch !== executor.epoch) this.#old.renew(outcome.epoch);
      this.#release(this.#machineFrom, outcome.epoch);
    }
    this.#stage?.free();
    if (this.#isLoading) loading.abort();
    this.#stage = undefined;
    port?.close();
  }

  /** Devices of both layouts give back what the one that serves does not need; others are told by their agents. */
  #release(layout: PipelineLayout, epoch: number): void {
    const meta = { refactoring: this.#parts.id, layout };
    const frame = (): FrameBytes => encodeJsonFrame({ kind: 'release', epoch, number: 0 }, meta);
    for (const port of [this.#parts.port, this.#old.port]) port?.send(frame());
  }

  get #own(): string {
    return this.#parts.told.device_identity;
  }

  get #n_operators(): number {
    return enumerateOperators(this.#parts.executor.model.n_layer).length;
  }
}
