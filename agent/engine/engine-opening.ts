import { loadGgml } from '../../native/ggml.ts';
import { probeNativeLibraries } from '../../native/probe.ts';
import type { EngineOptions } from '../../spec/engine-contract.ts';
import type { Backend } from '../backend/backend.ts';
import { cpuBackend } from '../backend/cpu/cpu-backend.ts';
import { checkOptions, kernelPolicy } from './engine-options.ts';
import type { KvSource } from './kv-storage.ts';
import { type ModelFile, openModelFile } from './model-file.ts';
import { NativeEngine } from './native-engine.ts';
import { stageOperators } from './operators.ts';
import type { ParkingDisk } from './parking-disk.ts';
import type { ScratchSource } from './scratch.ts';
import { planWeights } from './weight-plan.ts';
import type { LoadBeside, WeightLoading, WeightSource } from './weights.ts';

/** Where the memory of an engine comes from. */
export interface EngineMemory {
  weights: WeightSource;
  kv: KvSource;
  scratch: ScratchSource;
  /** See `EngineResources`. */
  disk?: ParkingDisk | undefined;
}

/** An engine whose weights are on their way, while the thread that computes goes on with other engines. */
export class EngineOpening {
  readonly #options: EngineOptions;
  readonly #backend: Backend;
  readonly #memory: EngineMemory;
  readonly #file: ModelFile;
  readonly #weights: WeightLoading;

  /**
   * @throws HpcserveError E_ENGINE_OPTIONS, E_ENGINE_MODEL, E_MODEL_*, E_NATIVE_*, E_POOL_*
   */
  constructor(
    options: EngineOptions,
    memory: EngineMemory,
    beside: LoadBeside,
    backend?: Backend,
    file?: ModelFile,
  ) {
    checkOptions(options);
    if (!backend) probeNativeLibraries();
    this.#options = options;
    this.#backend = backend ?? cpuBackend(loadGgml());
    this.#memory = memory;
    this.#file = file ?? openModelFile(options.model_path);
    const { gguf, model } = this.#file;
    const plan = planWeights(
      gguf,
      model,
      stageOperators(model.n_layer, options.stage),
      kernelPolicy(options),
    );
    this.#weights = memory.weights.begin(gguf, plan, beside, options.on_progress);
  }

  /**
   * @param help does a share of the loading, some milliseconds
   * @returns the engine, once its weights are there
   * @throws HpcserveError as the constructor; then it is over
   */
  advance(help: boolean): NativeEngine | undefined {
    const weights = this.#weights.advance(help);
    if (!weights) return undefined;
    const { kv, scratch, disk } = this.#memory;
    return new NativeEngine(this.#options, this.#backend, { file: this.#file, weights, kv, scratch, disk });
  }

  abort(): void {
    this.#weights.abort();
  }
}
