import type { Engine, EngineOptions, LoadProgress } from '../../../spec/engine-contract.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import type { LoadBeside } from '../../engine/weights.ts';
import type { DevicePool } from '../../memory/device-pool.ts';
import type { ModelUse, WeightLoad } from '../../memory/pooled-loading.ts';
import { type CoordinatorEngine, CoordinatorOpening } from '../../pipeline/coordinator-opening.ts';
import { RingPort, type RingSurroundings } from '../../pipeline/ring-port.ts';
import { toldFacts } from '../../pipeline/told-facts.ts';
import type { StreamedPart } from '../../streaming/streamed-models.ts';
import type { FromCompute } from './messages.ts';
import type { Opening, WorkerModel } from './worker-model.ts';
import type { WorkerModels } from './worker-models.ts';

/** Progress of a load is told at most this often, once there is any. Lower: smoother; higher: fewer messages. */
const progress_interval_ms = 250;

/** What loads need of the thread around them. */
export interface LoadSurroundings {
  /** Of pipelines whose first stage is here. */
  ring: RingSurroundings;
  send(message: FromCompute): void;
  /** Something came on. */
  beat(): void;
  /** Stages of models change, which give way to nobody before that is over. */
  areChanging(): boolean;
  /** A model does not fit: whether another gave way to it, so that it may fit now. */
  giveWay(model: WorkerModel): boolean;
  /** Weights are in their places. */
  loaded(load: WeightLoad): void;
  /** An engine is there. What it throws fails the load, and closes the engine. */
  opened(model: WorkerModel, engine: Engine): void;
  /** Its weights stay in host memory, but for so many bytes. @throws HpcserveError as `StreamedModels.open` */
  stream(name: string, options: EngineOptions, part: StreamedPart): Opening;
  /** An engine over a pipeline is there; `opened` follows. */
  pipelineOpened(opened: CoordinatorEngine): void;
  /** It is over, without an engine. */
  failed(model: WorkerModel, error: HpcserveError): void;
}

/**
 * Brings in the weights of models that load, while the compute thread goes on with those that serve. One that does not
 * fit begins again at once where another model gives way; else it waits while others are about to serve, which may then
 * do so.
 */
export class ModelLoads {
  readonly #pool: () => DevicePool;
  readonly #models: WorkerModels;
  readonly #around: LoadSurroundings;
  #queued = 0;

  constructor(pool: () => DevicePool, models: WorkerModels, around: LoadSurroundings) {
    this.#pool = pool;
    this.#models = models;
    this.#around = around;
  }

  get any(): boolean {
    return this.#models.has('loading');
  }

  /** All of them wait for stages on other devices: there is nothing to help with. */
  get onlyWait(): boolean {
    for (const model of this.#models.in('loading')) if (!model.isWaiting) return false;
    return true;
  }

  /** @param beside what the other models do */
  begin(model: WorkerModel, beside: LoadBeside): void {
    try {
      model.open(this.#open(model, beside));
    } catch (error) {
      this.fail(model, error, beside);
    }
  }

  /**
   * Looks after all loads.
   * @param help does a share of the work, some milliseconds
   */
  advance(help: boolean): void {
    for (const model of this.#models.in('loading')) {
      if (!model.isOpening) continue;
      try {
        const engine = model.advance(help);
        if (engine) this.#give(model, engine);
      } catch (error) {
        this.fail(model, error, 'idle');
      }
    }
    this.#next();
  }

  /**
   * A model that loads has no engine: it begins anew where another gives way, now or once that serves.
   * @throws HpcserveError E_DEVICE_FAILED: no model of the device can
   */
  fail(model: WorkerModel, thrown: unknown, beside: LoadBeside = 'idle'): void {
    const error = HpcserveError.from(thrown);
    if (error.code === 'E_DEVICE_FAILED') throw error;
    // Nothing of it is on its way any more.
    const nothing = { bytes_loaded: 0, bytes_total: 0, elapsed_ms: 0 };
    this.#around.send({ type: 'progress', name: model.name, ...nothing });
    const full = error.code === 'E_POOL_FULL';
    if (full && this.#around.giveWay(model)) this.begin(model, beside);
    else if (full && this.#isRoomToCome(model)) model.queue(this.#queued++);
    else this.#around.failed(model, error);
  }

  #give(model: WorkerModel, engine: Engine): void {
    try {
      this.#around.opened(model, engine);
    } catch (error) {
      engine.close();
      throw error;
    }
  }

  #open({ name, message }: WorkerModel, beside: LoadBeside): Opening {
    const { latency_sensitivity, pipeline, streamed } = message;
    if (streamed) return this.#around.stream(name, message.options, streamed);
    const options = { ...message.options, on_progress: this.#progressOf(name) };
    const use: ModelUse = { model: name, on_loaded: (load) => this.#around.loaded(load) };
    if (latency_sensitivity !== undefined) use.latency_sensitivity = latency_sensitivity;
    if (!pipeline) return this.#pool().open(options, use, beside);
    const kv = this.#pool().layerKv(name);
    const loading = this.#pool().openStage(options, use, beside, kv);
    const isRing = pipeline.stages > 1;
    const port = isRing ? new RingPort(pipeline.listen, pipeline.next, this.#around.ring) : undefined;
    const told = toldFacts(loading.file, options, pipeline);
    return new CoordinatorOpening(options, loading, port, told, kv, (opened) =>
      this.#around.pipelineOpened(opened),
    );
  }

  #progressOf(name: string): (progress: LoadProgress) => void {
    let told_ms = Number.NEGATIVE_INFINITY;
    return (progress) => {
      const { bytes_loaded, bytes_total, elapsed_ms } = progress;
      this.#around.beat();
      if (bytes_loaded < bytes_total && elapsed_ms - told_ms < progress_interval_ms) return;
      // The first bytes are news, too: from them on there is a rate.
      if (bytes_loaded > 0) told_ms = elapsed_ms;
      this.#around.send({ type: 'progress', name, ...progress });
    };
  }

  /** Requests for a model that is away are told at once: a change of stages may take minutes. */
  #isRoomToCome({ isAway }: WorkerModel): boolean {
    return this.#othersCome() || (!isAway && this.#around.areChanging());
  }

  /**
   * Models are about to serve, and cannot give way yet. One that waits for stages on other devices may wait for as long
   * as those like: nobody here waits for it.
   */
  #othersCome(): boolean {
    for (const model of this.#models)
      if ((model.isOpening && !model.isWaiting) || model.state === 'profiling') return true;
    return false;
  }

  /** Of those that wait, the first begins once nothing else is on its way. */
  #next(): void {
    if (this.#othersCome()) return;
    let first: WorkerModel | undefined;
    for (const model of this.#models)
      if (model.queued !== undefined && (first === undefined || model.queued < first.queued!)) first = model;
    // It would find what it found before.
    if (first && !first.isAway && this.#around.areChanging()) return;
    if (first) this.begin(first, 'idle');
  }
}
