import type { EngineOptions } from '../../spec/engine-contract.ts';
import type { Backend } from '../backend/backend.ts';
import type { EngineMemory } from './engine-opening.ts';
import { checkOptions, kernelPolicy } from './engine-options.ts';
import type { ModelFile } from './model-file.ts';
import { stageOperators } from './operators.ts';
import { Stage } from './stage.ts';
import { stageOptions } from './stage-options.ts';
import { planWeights } from './weight-plan.ts';
import type { LoadBeside, WeightLoading } from './weights.ts';

/** A stage of a pipeline whose weights are on their way, while the thread that computes goes on with other models. */
export class StageOpening {
  readonly file: ModelFile;
  readonly #options: EngineOptions;
  readonly #backend: Backend;
  readonly #memory: EngineMemory;
  readonly #weights: WeightLoading;

  /**
   * @param options with the range of its operators
   * @param memory whose KV is there as a whole, as that of `LayerKv`
   * @throws HpcserveError E_ENGINE_OPTIONS, E_ENGINE_MODEL, E_MODEL_*, E_NATIVE_*, E_POOL_*
   */
  constructor(
    options: EngineOptions,
    memory: EngineMemory,
    beside: LoadBeside,
    backend: Backend,
    file: ModelFile,
  ) {
    checkOptions(options);
    // A stage sees its own operators alone, so it cannot choose for all of them.
    this.#options = { ...options, batch_invariant: options.batch_invariant ?? false };
    this.#backend = backend;
    this.#memory = memory;
    this.file = file;
    const { gguf, model } = file;
    const operators = stageOperators(model.n_layer, options.stage);
    const plan = planWeights(gguf, model, operators, kernelPolicy(options));
    this.#weights = memory.weights.begin(gguf, plan, beside, options.on_progress);
  }

  /**
   * @param help does a share of the loading, some milliseconds
   * @returns the stage, once its weights are there and all of its KV has memory
   * @throws HpcserveError as the constructor; then it is over
   */
  advance(help: boolean): Stage | undefined {
    const weights = this.#weights.advance(help);
    if (!weights) return undefined;
    const { kv, scratch } = this.#memory;
    return new Stage(this.#backend, this.file, stageOptions(this.#options, { weights, kv, scratch }));
  }

  abort(): void {
    this.#weights.abort();
  }

  /** See `WeightLoading`. */
  letGo(): boolean {
    return this.#weights.letGo();
  }
}
