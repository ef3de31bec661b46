import type { EngineOptions } from '../../spec/engine-contract.ts';
import type { LayerKv } from '../engine/layer-kv.ts';
import { NativeEngine } from '../engine/native-engine.ts';
import type { Stage } from '../engine/stage.ts';
import type { StageOpening } from '../engine/stage-opening.ts';
import { ChangingExecutor } from './changing-executor.ts';
import type { FramePort } from './frame-port.ts';
import { PipelineOpening } from './open-pipeline.ts';
import { PipelineExecutor } from './pipeline-executor.ts';
import { factsOf, type ToldFacts } from './pipeline-stage.ts';

/** The engine of a pipeline, and what in it changes with the layout. */
export interface CoordinatorEngine {
  readonly engine: NativeEngine;
  readonly executor: ChangingExecutor;
}

/**
 * An engine over a pipeline that is on its way: the weights of the first stage, then the other stages, which load on
 * devices of their own and may take longer.
 */
export class CoordinatorOpening {
  readonly #options: EngineOptions;
  readonly #loading: StageOpening;
  readonly #port: FramePort | undefined;
  readonly #told: ToldFacts;
  readonly #kv: LayerKv;
  readonly #opened: (opened: CoordinatorEngine) => void;
  #stage: Stage | undefined;
  #opening: PipelineOpening | undefined;

  /**
   * @param port undefined: the pipeline has one stage
   * @param kv of `loading`
   * @param opened hears of the engine before it serves
   */
  constructor(
    options: EngineOptions,
    loading: StageOpening,
    port: FramePort | undefined,
    told: ToldFacts,
    kv: LayerKv,
    opened: (opened: CoordinatorEngine) => void = () => undefined,
  ) {
    this.#options = options;
    this.#loading = loading;
    this.#port = port;
    this.#told = told;
    this.#kv = kv;
    this.#opened = opened;
  }

  /** Its own part is there, and nothing is to be done before the others come. */
  get isWaiting(): boolean {
    return this.#stage !== undefined;
  }

  /** @throws HpcserveError as `StageOpening`, and E_STAGE_MISMATCH; then it is over */
  advance(help: boolean): NativeEngine | undefined {
    try {
      return this.#advance(help);
    } catch (error) {
      this.#stage?.free();
      this.#port?.close();
      throw error;
    }
  }

  abort(): void {
    if (this.#stage) this.#stage.free();
    else this.#loading.abort();
    this.#port?.close();
  }

  #advance(help: boolean): NativeEngine | undefined {
    if (!this.#stage) {
      this.#stage = this.#loading.advance(help);
      if (!this.#stage) return undefined;
    }
    const running = this.#open(this.#stage);
    if (!running) return undefined;
    const executor = new ChangingExecutor(running, this.#kv);
    const engine = new NativeEngine(this.#options, undefined, { file: this.#loading.file, executor });
    // The executor is the engine's from now on, and the stage the executor's.
    this.#stage = undefined;
    this.#opened({ engine, executor });
    return engine;
  }

  #open(stage: Stage): PipelineExecutor | undefined {
    if (!this.#port) {
      const facts = { ...factsOf(stage, 0, this.#told), epoch: 0 };
      return new PipelineExecutor(stage, undefined, [facts], 1);
    }
    this.#opening ??= new PipelineOpening(stage, this.#port, this.#told);
    return this.#opening.advance();
  }
}
