import { HeldLayouts } from '../../../solver/refactoring/held-layouts.ts';
import type { EngineOptions, EngineStats } from '../../../spec/engine-contract.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import type { LayerKv } from '../../engine/layer-kv.ts';
import type { ModelFile } from '../../engine/model-file.ts';
import { modelInfo } from '../../engine/model-info.ts';
import type { Stage } from '../../engine/stage.ts';
import type { LoadBeside } from '../../engine/weights.ts';
import type { DevicePool } from '../../memory/device-pool.ts';
import type { WeightLoad } from '../../memory/pooled-loading.ts';
import { DeviceStages } from '../../pipeline/device-stages.ts';
import { RingPort, type RingSurroundings } from '../../pipeline/ring-port.ts';
import { toldFacts } from '../../pipeline/told-facts.ts';
import type { LeavingLoads } from './leaving-loads.ts';
import type { FromCompute } from './messages.ts';
import { type PipelineLoad, StageLoad } from './stage-load.ts';
import { type StageRows, stageKvOf } from './stage-rows.ts';

/** Nobody wakes this: to wait on it is to sleep. */
const noSignal = new Int32Array(new SharedArrayBuffer(4));

interface HostedStage {
  readonly name: string;
  /** Absent: there is no pool yet. */
  kv: LayerKv | undefined;
  /** Absent: its first stage is on its way. */
  held: DeviceStages | undefined;
  /** The stage that it is loaded with, on its way. */
  loading: StageLoad | undefined;
  /** That of a layout to come, on its way, or why it does not come. */
  coming: StageLoad | undefined;
  /** As it was loaded, or prepared, last; absent: it was not yet. */
  options: PipelineLoad['options'] | undefined;
  /** What the books of the device count for it. */
  booked_bytes: number;
  /** The change of the stage that was told of last; undefined: it was there before any. */
  refactoring_told: number | undefined;
}

interface StageSurroundings {
  ring: RingSurroundings;
  pool: () => DevicePool;
  /** Least time of a batch, ms: the declared speed of an emulated device. */
  step_ms_min: number;
  rows: StageRows;
  leaving: LeavingLoads;
  /** Weights are in their places. */
  loaded(load: WeightLoad): void;
  /** So many bytes of the pool are a model's for good, or until this is told again. */
  holds(model: string, bytes: number): void;
  send(message: FromCompute): void;
}

/** The stages that this device has of models whose coordinator is elsewhere. They do what frames say, in turns. */
export class HostedStages {
  readonly #around: StageSurroundings;
  readonly #stages = new Map<string, HostedStage>();

  constructor(around: StageSurroundings) {
    this.#around = around;
  }

  get areLoading(): boolean {
    for (const { loading, coming } of this.#stages.values())
      if (loading?.isOpening || coming?.isOpening) return true;
    return false;
  }

  /** Batches may come to a stage that serves. */
  get areServing(): boolean {
    for (const { held } of this.#stages.values()) if (held?.serving) return true;
    return false;
  }

  load(message: PipelineLoad, beside: LoadBeside): void {
    const { name } = message;
    if (this.#stages.has(name)) return;
    this.#begin(this.#new(name), message, beside);
  }

  /** A layout is to come in which the model has this stage here. */
  prepare(message: PipelineLoad, refactoring: number, beside: LoadBeside): void {
    const { name } = message;
    const hosted = this.#stages.get(name) ?? this.#new(name);
    this.#leave(hosted.coming);
    this.#begin(hosted, message, beside, refactoring);
  }

  /** The change is given up: what was prepared for it goes. A stage that serves by now stays, as does any other. */
  unprepare(name: string, refactoring: number): void {
    const hosted = this.#stages.get(name);
    if (!hosted) return;
    if (hosted.coming?.refactoring === refactoring) {
      this.#leave(hosted.coming);
      hosted.coming = undefined;
    }
    hosted.held?.unprepare(refactoring);
    this.#book(hosted);
  }

  unload(name: string): void {
    const hosted = this.#stages.get(name);
    if (!hosted) return;
    this.#stages.delete(name);
    this.#leave(hosted.loading);
    this.#leave(hosted.coming);
    hosted.held?.free();
    hosted.held = undefined;
    this.#book(hosted);
  }

  /** What the device has of a model; undefined where that is nothing. */
  of(model: string): DeviceStages | undefined {
    return this.#stages.get(model)?.held;
  }

  close(): void {
    for (const name of [...this.#stages.keys()]) this.unload(name);
    this.#around.leaving.settle();
  }

  /** Loads come on. @param help does a share of them */
  advance(help: boolean): void {
    for (const hosted of [...this.#stages.values()])
      for (const load of [hosted.loading, hosted.coming]) {
        if (!load?.isOpening) continue;
        try {
          const stage = load.advance(help);
          if (stage) this.#opened(hosted, load, stage);
        } catch (error) {
          this.#failed(hosted, load, error);
        }
      }
  }

  /**
   * One frame of each ring that has one. A stage beside another version is given up. @returns whether there was any
   * @throws HpcserveError E_DEVICE_FAILED: no model of the device goes on
   */
  serve(): boolean {
    let served = false;
    for (const hosted of [...this.#stages.values()]) {
      if (hosted.coming?.answerRefused()) served = true;
      try {
        if (!hosted.held?.serve((began_ms) => this.#keepPace(began_ms))) continue;
        // It may have heard that the layout has changed.
        this.#book(hosted);
        this.#tellChange(hosted);
      } catch (error) {
        if (!(error instanceof HpcserveError) || error.code !== 'E_STAGE_MISMATCH') throw error;
        this.#lost(hosted.name, error);
      }
      served = true;
    }
    return served;
  }

  #keepPace(began_ms: number): void {
    const left_ms = this.#around.step_ms_min - (performance.now() - began_ms);
    if (left_ms > 0) Atomics.wait(noSignal, 0, 0, left_ms);
  }

  #new(name: string): HostedStage {
    const nothing = { kv: undefined, held: undefined, loading: undefined, coming: undefined };
    const options = undefined;
    const untold = { booked_bytes: 0, refactoring_told: undefined };
    const hosted: HostedStage = { name, ...nothing, options, ...untold };
    this.#stages.set(name, hosted);
    return hosted;
  }

  #leave(load: StageLoad | undefined): void {
    if (load) this.#around.leaving.add(load);
  }

  #begin(hosted: HostedStage, message: PipelineLoad, beside: LoadBeside, refactoring?: number): void {
    const { name, pipeline, options } = message;
    const on_progress = (progress: { bytes_loaded: number; bytes_total: number; elapsed_ms: number }): void =>
      this.#around.send({ type: 'progress', name, ...progress });
    const port = new RingPort(pipeline.listen, pipeline.next, this.#around.ring);
    const load = new StageLoad(message, port, refactoring);
    hosted[slotOf(load)] = load;
    try {
      // Its own stage is needed first, and no pipeline that waits for it changes.
      if (refactoring !== undefined && hosted.loading) throw stillComing(name);
      this.#around.leaving.settle();
      // The pool comes with the first model: that there is none is that model's error.
      const pool = this.#around.pool();
      hosted.kv ??= pool.layerKv(name);
      const use = { model: name, on_loaded: this.#around.loaded };
      load.open(pool.openStage({ ...options, on_progress }, use, beside, hosted.kv));
    } catch (error) {
      this.#failed(hosted, load, error);
    }
  }

  #opened(hosted: HostedStage, load: StageLoad, { file, stage }: { file: ModelFile; stage: Stage }): void {
    const { message, port, refactoring } = load;
    const { pipeline, options } = message;
    hosted[slotOf(load)] = undefined;
    hosted.options = options;
    const isFirst = hosted.held === undefined;
    const range = { begin: pipeline.begin, end: pipeline.end };
    const told = toldFacts(file, options, pipeline);
    hosted.held ??= new DeviceStages(
      pipeline.device_identity,
      told,
      new HeldLayouts(0, refactoring === undefined ? range : undefined),
      this.#around.rows.transfersOf(hosted.name),
    );
    if (refactoring === undefined) hosted.held.add(stage, pipeline, port);
    else hosted.held.prepare(refactoring, stage, pipeline, port);
    this.#book(hosted);
    if (!isFirst) return;
    const info = modelInfo(file);
    const loaded: FromCompute = { type: 'loaded', name: hosted.name, info, stats: statsOf(stage, options) };
    const stage_kv = stageKvOf(stage.kv, info, told.model, this.#around.pool().memory.transferMemory);
    if (stage_kv) loaded.stage_kv = stage_kv;
    this.#around.send(loaded);
  }

  /** Of the two stages that the device has while a layout changes, the larger one counts: they share what they can. */
  #book(hosted: HostedStage): void {
    const { serving, prepared } = hosted.held ?? {};
    const bytes = Math.max(bytesOf(serving?.stage), bytesOf(prepared?.stage));
    if (bytes === hosted.booked_bytes) return;
    hosted.booked_bytes = bytes;
    this.#around.holds(hosted.name, bytes);
  }

  #tellChange(hosted: HostedStage): void {
    const { name, held, options } = hosted;
    const stage = held?.serving?.stage;
    const refactoring = held?.refactoring;
    if (!stage || !options || refactoring === hosted.refactoring_told) return;
    hosted.refactoring_told = refactoring;
    this.#around.send({ type: 'stage', name, refactoring, stats: statsOf(stage, options) });
  }

  /** @throws HpcserveError E_DEVICE_FAILED: no model of the device goes on */
  #failed(hosted: HostedStage, load: StageLoad, thrown: unknown): void {
    const error = HpcserveError.from(thrown);
    if (error.code === 'E_DEVICE_FAILED') throw error;
    if (load.refactoring !== undefined) {
      // Who changes the layout hears of it over the new ring; what is here of the old one serves on.
      load.refuse(error);
      return;
    }
    this.#lost(hosted.name, error);
  }

  #lost(name: string, error: HpcserveError): void {
    this.unload(name);
    this.#around.send({ type: 'load_failed', name, error: error.toJSON() });
  }
}

function slotOf({ refactoring }: StageLoad): 'loading' | 'coming' {
  return refactoring === undefined ? 'loading' : 'coming';
}

function bytesOf(stage: Stage | undefined): number {
  return stage ? stage.weight_bytes + stage.kv.bytes + stage.working_bytes : 0;
}

function stillComing(name: string): HpcserveError {
  return new HpcserveError('E_REFACTOR_MODEL', {
    what: `the stages of ${name} cannot change now`,
    because: 'the stage that this device has of it is still on its way',
  });
}

function statsOf(
  stage: Stage,
  { kv_tokens, max_sequences }: Pick<EngineOptions, 'kv_tokens' | 'max_sequences'>,
): EngineStats {
  return {
    running: 0,
    waiting: 0,
    max_sequences,
    kv_tokens_total: stage.kv.n_matrices > 0 ? stage.kv.storage.slab_rows : kv_tokens,
    kv_tokens_used: 0,
    weight_bytes: stage.weight_bytes,
    layouts: stage.layouts,
    batch_invariant: stage.batch_invariant,
    kv_bytes: stage.kv.bytes,
    compute_bytes: stage.compute_bytes,
    working_bytes: stage.working_bytes,
  };
}
