import type { Engine } from '../../../spec/engine-contract.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import type { LoadBeside } from '../../engine/weights.ts';
import type { DevicePool } from '../../memory/device-pool.ts';
import type { WeightLoad } from '../../memory/pooled-loading.ts';
import type { FromCompute } from './messages.ts';
import type { Opening, WorkerModel } from './worker-model.ts';
import type { WorkerModels } from './worker-models.ts';

/** Progress of a load is told at most this often, once there is any. Lower: smoother; higher: fewer messages. */
const progress_interval_ms = 250;

/** What loads need of the thread around them. */
export interface LoadSurroundings {
  send(message: FromCompute): void;
  /** Something came on. */
  beat(): void;
  /** A model does not fit: whether another gave way to it, so that it may fit now. */
  giveWay(model: WorkerModel): boolean;
  /** Weights are in their places. */
  loaded(load: WeightLoad): void;
  /** An engine is there. What it throws fails the load, and closes the engine. */
  opened(model: WorkerModel, engine: Engine): void;
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

  /** A model that loads has no engine: it begins anew where another gives way, now or once that serves. */
  fail(model: WorkerModel, thrown: unknown, beside: LoadBeside = 'idle'): void {
    const error = HpcserveError.from(thrown);
    // Nothing of it is on its way any more.
    const nothing = { bytes_loaded: 0, bytes_total: 0, elapsed_ms: 0 };
    this.#around.send({ type: 'progress', name: model.name, ...nothing });
    const full = error.code === 'E_POOL_FULL';
    if (full && this.#around.giveWay(model)) this.begin(model, beside);
    else if (full && this.#othersCome()) model.queue(this.#queued++);
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
    const { options, latency_sensitivity } = message;
    const on_progress = this.#progressOf(name);
    const on_loaded = (load: WeightLoad): void => this.#around.loaded(load);
    return this.#pool().open(
      { ...options, on_progress },
      latency_sensitivity === undefined
        ? { model: name, on_loaded }
        : { model: name, on_loaded, latency_sensitivity },
      beside,
    );
  }

  #progressOf(
    name: string,
  ): (progress: { bytes_loaded: number; bytes_total: number; elapsed_ms: number }) => void {
    let told_ms = Number.NEGATIVE_INFINITY;
    return ({ bytes_loaded, bytes_total, elapsed_ms }) => {
      this.#around.beat();
      if (bytes_loaded < bytes_total && elapsed_ms - told_ms < progress_interval_ms) return;
      // The first bytes are news, too: from them on there is a rate.
      if (bytes_loaded > 0) told_ms = elapsed_ms;
      this.#around.send({ type: 'progress', name, bytes_loaded, bytes_total, elapsed_ms });
    };
  }

  /** Models are about to serve, and cannot give way yet. */
  #othersCome(): boolean {
    for (const model of this.#models) if (model.isOpening || model.state === 'profiling') return true;
    return false;
  }

  /** Of those that wait, the first begins once nothing else is on its way. */
  #next(): void {
    if (this.#othersCome()) return;
    let first: WorkerModel | undefined;
    for (const model of this.#models)
      if (model.queued !== undefined && (first === undefined || model.queued < first.queued!)) first = model;
    if (first) this.begin(first, 'idle');
  }
}
