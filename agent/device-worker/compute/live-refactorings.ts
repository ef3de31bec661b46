import type { Engine } from '../../../spec/engine-contract.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import type { LoadBeside } from '../../engine/weights.ts';
import type { DevicePool } from '../../memory/device-pool.ts';
import type { WeightLoad } from '../../memory/pooled-loading.ts';
import type { CoordinatorEngine } from '../../pipeline/coordinator-opening.ts';
import { LiveRefactoring } from '../../pipeline/live-refactoring.ts';
import { RingPort, type RingSurroundings } from '../../pipeline/ring-port.ts';
import type { RowTarget } from '../../pipeline/row-transfers.ts';
import { SortedPort } from '../../pipeline/sorted-port.ts';
import { toldFacts } from '../../pipeline/told-facts.ts';
import type { KvShapeOfStage } from './kv-messages.ts';
import type { LeavingLoads } from './leaving-loads.ts';
import type { FromCompute, LoadMessage, ToCompute } from './messages.ts';
import { type StageRows, stageKvOf } from './stage-rows.ts';

type RefactorMessage = ToCompute & { type: 'refactor' };

interface RefactoringSurroundings {
  ring: RingSurroundings;
  pool: () => DevicePool;
  rows: StageRows;
  leaving: LeavingLoads;
  /** Weights are in their places. */
  loaded(load: WeightLoad): void;
  /** The stages of a model change from now on, or do not any more. */
  changes(model: string, does: boolean): void;
  /** A model has another layout from now on. @param load as it would be loaded now */
  changed(load: LoadMessage): void;
  send(message: FromCompute): void;
}

/** The pipelines whose coordinator this device is, and those of them whose layout changes now. */
export class LiveRefactorings {
  readonly #around: RefactoringSurroundings;
  /** Each is let go with its engine, and is no other's that a model of the same name has later. */
  readonly #engines = new WeakMap<Engine, CoordinatorEngine>();
  readonly #live = new Map<string, { message: RefactorMessage; live: LiveRefactoring }>();
  /** By model that is on its way back: the change begins once it serves. */
  readonly #awaited = new Map<string, RefactorMessage>();

  constructor(around: RefactoringSurroundings) {
    this.#around = around;
  }

  get any(): boolean {
    return this.#live.size > 0;
  }

  /** The change of a model that is under way. */
  of(model: string): RowTarget | undefined {
    return this.#live.get(model)?.live;
  }

  /** What the rows of a pipeline are; undefined of other models. */
  stageKvOf(engine: Engine): KvShapeOfStage | undefined {
    const executor = this.#engines.get(engine)?.executor;
    if (!executor) return undefined;
    const { transferMemory } = this.#around.pool().memory;
    return stageKvOf(executor.stage.kv, engine.info, executor.stages[0]!.model, transferMemory);
  }

  /** The engine of a pipeline was opened, perhaps anew. */
  opened(opened: CoordinatorEngine): void {
    this.#engines.set(opened.engine, opened);
  }

  /** @param serving the engine of the model; undefined: it does not serve */
  begin(message: RefactorMessage, serving: Engine | undefined, beside: LoadBeside): void {
    try {
      this.#live.set(message.load.name, { message, live: this.#open(message, serving, beside) });
      this.#around.changes(message.load.name, true);
    } catch (error) {
      this.#refuse(message, HpcserveError.from(error));
    }
  }

  /** The change of a model that is away: it comes back first. @returns whether the change waits for that */
  await(message: RefactorMessage): boolean {
    const { name } = message.load;
    if (this.#awaited.has(name)) {
      this.#refuse(message, isChanging(name));
      return false;
    }
    this.#awaited.set(name, message);
    return true;
  }

  /** A model serves again: the change that waited for it begins. */
  cameBack(name: string, serving: Engine, beside: LoadBeside): void {
    const message = this.#takeAwaited(name);
    if (message) this.begin(message, serving, beside);
  }

  /** A model does not come back: the change that waited for it is over. */
  staysAway(name: string, because: HpcserveError): void {
    const message = this.#takeAwaited(name);
    if (message) this.#refuse(message, because);
  }

  cancel(name: string, because: string): void {
    this.staysAway(name, keptStages(name, because));
    this.#live.get(name)?.live.cancel(because);
    this.advance(false);
  }

  /** Between two iterations. @param help does a share of what loads */
  advance(help: boolean): void {
    for (const [name, { message, live }] of [...this.#live]) {
      live.advance(help);
      const { report } = live;
      if (!report) continue;
      this.#live.delete(name);
      this.#around.changes(name, false);
      if (report.outcome.kind === 'refactored') this.#around.changed(message.load);
      this.#around.send({ type: 'refactored', name, id: message.id, report });
    }
  }

  #open({ id, to, load }: RefactorMessage, serving: Engine | undefined, beside: LoadBeside): LiveRefactoring {
    const { name, options, pipeline } = load;
    const engine = serving && this.#engines.get(serving);
    if (!engine)
      throw new HpcserveError('E_REFACTOR_MODEL', {
        what: `the stages of ${name} cannot change now`,
        because: serving ? 'it was loaded whole, and has no stages' : 'it does not serve',
      });
    if (this.#live.has(name)) throw isChanging(name);
    const { executor } = engine;
    const { ring, pool, leaving, loaded } = this.#around;
    leaving.settle();
    const loading = pool().openStage(options, { model: name, on_loaded: loaded }, beside, executor.kv);
    const isRing = pipeline!.stages > 1;
    const port = isRing ? new SortedPort(new RingPort(pipeline!.listen, pipeline!.next, ring)) : undefined;
    try {
      return new LiveRefactoring({
        id,
        executor,
        sequences: engine.engine,
        to,
        loading: { advance: (help) => loading.advance(help), abort: () => leaving.add(loading) },
        told: toldFacts(loading.file, options, pipeline!),
        port,
        transfers: this.#around.rows.transfersOf(name),
        wait: (ms_max) => this.#wait(ms_max),
      });
    } catch (error) {
      loading.abort();
      port?.close();
      throw error;
    }
  }

  #takeAwaited(name: string): RefactorMessage | undefined {
    const message = this.#awaited.get(name);
    this.#awaited.delete(name);
    return message;
  }

  #refuse({ id, load: { name } }: RefactorMessage, error: HpcserveError): void {
    this.#around.send({ type: 'refactored', name, id, error: error.toJSON() });
  }

  /** Frames of both rings wake this thread; stages of other pipelines are served meanwhile. */
  #wait(ms_max: number): void {
    const { signal, meanwhile } = this.#around.ring;
    const seen = Atomics.load(signal, 0);
    if (!meanwhile()) Atomics.wait(signal, 0, seen, ms_max);
  }
}

function isChanging(name: string): HpcserveError {
  return new HpcserveError('E_REFACTOR_BUSY', { what: `the stages of ${name} change already` });
}

/** A change came to nothing before it began. */
export function keptStages(name: string, because: string): HpcserveError {
  return new HpcserveError('E_REFACTOR_KEPT', { what: `${name} keeps the stages that it has`, because });
}
