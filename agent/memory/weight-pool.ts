import type { GgufFile } from '../../native/formats/gguf-reader.ts';
import type { Pointer } from '../../native/signature.ts';
import type { LoadProgress } from '../../spec/engine-contract.ts';
import type { Backend } from '../backend/backend.ts';
import type { PoolLayout, PoolMemory } from '../backend/pool-memory.ts';
import type { ModelFile } from '../engine/model-file.ts';
import { stageOperators } from '../engine/operators.ts';
import { type KernelPolicy, planWeights, type WeightPlan } from '../engine/weight-plan.ts';
import {
  type LoadBeside,
  type PlacedWeight,
  placeWeights,
  type WeightLoading,
  type WeightSource,
  weightContext,
} from '../engine/weights.ts';
import type { ContentHashCache, ContentHashes } from './content-hashes.ts';
import { type FileVersion, headerVersion, sharedVersionText, versionText } from './file-version.ts';
import { fingerprints } from './fingerprint.ts';
import { describeLoad } from './load/describe-load.ts';
import type { TensorLoad } from './load/pieces.ts';
import { TensorLoader, type TensorLoaderOptions } from './load/tensor-loader.ts';
import type { TensorLoading } from './load/tensor-loading.ts';
import type { PendingLoad, WantedTensor } from './pending-load.ts';
import { type ManifestModel, mergeRanges } from './pool-manifest.ts';
import { PooledContents, type PooledPart } from './pooled-contents.ts';
import { type ModelUse, PooledLoading, type PooledTensor } from './pooled-loading.ts';
import type { ReuseStore } from './reuse-store.ts';

export interface WeightPoolOptions extends TensorLoaderOptions {
  /** Where hashes of contents are kept; absent: tensors are told apart by their files. */
  content_hashes?: ContentHashCache;
}

/** Models of which it is remembered what they are made of. Lower: less memory; higher: longer manifests. */
const described_max = 256;

/** A model as it was when it was loaded: which tensors, out of which ranges of its file. */
interface DescribedModel {
  version: FileVersion;
  tensors: PooledPart[];
  contents: ContentHashes | undefined;
}

/**
 * The weights of many models in one pool: what an engine asks for is looked up in the reuse store, and only what
 * is missing is read. When the engine is closed its tensors stay, so that the model comes back in the time that
 * its missing tensors take.
 */
export class WeightPool {
  readonly #memory: PoolMemory;
  readonly #store: ReuseStore;
  readonly #backend: Backend;
  readonly #loader: TensorLoader;
  readonly #hashes: ContentHashCache | undefined;
  /** Those that plans were made with here. */
  readonly #policies = new Set<KernelPolicy>();
  /** Models that were asked for, the last one at the end. */
  readonly #described = new Map<string, DescribedModel>();
  /** Of those; absent since they changed. */
  #contents: PooledContents | undefined;
  /** Loads that are over, and of which a thread is still in a read: their memory is nobody's until then. */
  readonly #hanging = new Map<TensorLoading, () => void>();

  constructor(backend: Backend, memory: PoolMemory, store: ReuseStore, options: WeightPoolOptions) {
    this.#backend = backend;
    this.#memory = memory;
    this.#store = store;
    this.#hashes = options.content_hashes;
    this.#loader = new TensorLoader(backend, memory, options);
  }

  /** Weights of one engine. */
  source(use: ModelUse = {}): WeightSource {
    return {
      begin: (file, plan, beside, onProgress) => this.#begin(file, plan, use, beside, onProgress),
    };
  }

  /** S and S′ of Equation 3: bytes of a model in the pool, and how many of them are there. */
  affinity(file: GgufFile, plan: WeightPlan): { model_bytes: number; reusable_bytes: number } {
    const context = weightContext(this.#backend.ggml, plan);
    try {
      const tensors = this.#describe(headerVersion(file), plan, context);
      const wanted = tensors.map((tensor) => tensor.wanted);
      return {
        model_bytes: wanted.reduce((sum, { bytes }) => sum + bytes, 0),
        reusable_bytes: this.#store.residentWeights_bytes(wanted),
      };
    } finally {
      this.#backend.ggml.ggml_free(context);
    }
  }

  /**
   * What of each model lies in the pool now, and how likely it is asked for next. No file is looked at, since models
   * compute meanwhile: whether one has changed, its reader sees.
   */
  manifest(): ManifestModel[] {
    return [...this.#described].flatMap(([model, { version, tensors }]): ManifestModel[] => {
      const held = tensors.filter(({ wanted }) => this.#store.has(wanted));
      if (held.length === 0) return [];
      const ranges = mergeRanges(held.flatMap(({ parts }) => parts));
      const probability = this.#store.probability(model);
      return [{ path: version.path, version: sharedVersionText(version), probability, ranges }];
    });
  }

  /**
   * Where bytes that a SHA-256 names lie in the pool now, as in their file: until the pool is next asked for memory.
   * @returns undefined where they are not there, or lie otherwise
   */
  placeOf(content: string): { offset: number; bytes: number } | undefined {
    this.#contents ??= new PooledContents(this.#described.values());
    const found = this.#contents.find(content);
    const offset = found && this.#store.offsetOf(found.wanted);
    return offset === undefined
      ? undefined
      : { offset: offset + found!.begin_bytes, bytes: found!.size_bytes };
  }

  /**
   * The contents of a model file are known by now: its tensors that are in the pool are found by them, too.
   * @throws HpcserveError E_POOL_LOAD
   */
  adoptContents({ gguf, model }: ModelFile): void {
    const version = headerVersion(gguf);
    for (const policy of this.#policies)
      this.#adopt(version, planWeights(gguf, model, stageOperators(model.n_layer), policy));
  }

  #adopt(version: FileVersion, plan: WeightPlan): void {
    const contents = this.#hashes?.read(version);
    for (const described of this.#described.values())
      if (versionText(described.version) === versionText(version)) described.contents = contents;
    this.#contents = undefined;
    const context = weightContext(this.#backend.ggml, plan);
    try {
      for (const { wanted } of this.#describe(version, plan, context, contents)) {
        const [content, file] = wanted.keys;
        if (content !== undefined && file !== undefined) this.#store.alias(file, content);
      }
    } finally {
      this.#backend.ggml.ggml_free(context);
    }
  }

  /** Ends the loading threads. No load may be under way. */
  close(): Promise<void> {
    return this.#loader.close();
  }

  #begin(
    file: GgufFile,
    plan: WeightPlan,
    use: ModelUse,
    beside: LoadBeside,
    onProgress?: (progress: LoadProgress) => void,
  ): WeightLoading {
    const started = performance.now();
    this.#takeBack();
    this.#policies.add(plan.kernels);
    const { ggml } = this.#backend;
    const version = headerVersion(file);
    const context = weightContext(ggml, plan);
    let pending: PendingLoad | undefined;
    try {
      const contents = this.#hashes?.read(version);
      const tensors = this.#describe(version, plan, context, contents);
      const model = use.model ?? file.path;
      this.#remember(model, version, tensors, contents);
      pending = this.#store.begin({
        model,
        latency_sensitivity: use.latency_sensitivity ?? 1,
        tensors: tensors.map(({ wanted }) => wanted),
      });
      const { missing, offsets } = pending;
      const loads = missing.map((index) => tensors[index]!.at(offsets[index]!));
      const reading =
        loads.length > 0 ? this.#loader.begin(version, loads, beside, onProgress, contents) : undefined;
      const onHang = (hanging: TensorLoading, giveBack: () => void): void =>
        void this.#hanging.set(hanging, giveBack);
      return new PooledLoading({
        ggml,
        context,
        plan,
        model,
        tensors,
        pending,
        reading,
        onHang,
        started,
        use,
      });
    } catch (error) {
      pending?.abort();
      ggml.ggml_free(context);
      throw error;
    }
  }

  /** Memory of loads that hung, and hang no more. */
  #takeBack(): void {
    for (const [reading, giveBack] of this.#hanging) {
      if (reading.letGo() !== 'gone') continue;
      this.#hanging.delete(reading);
      giveBack();
    }
  }

  #remember(
    model: string,
    version: FileVersion,
    tensors: readonly PooledTensor[],
    contents: ContentHashes | undefined,
  ): void {
    this.#contents = undefined;
    this.#described.delete(model);
    const described = tensors.map(({ wanted, layout, at }): PooledPart => {
      return { wanted, parts: at(0).parts, as_in_file: layout === this.#memory.plain };
    });
    this.#described.set(model, { version, tensors: described, contents });
    if (this.#described.size > described_max) this.#described.delete(this.#described.keys().next().value!);
  }

  /** In the order of the file. */
  #describe(
    version: FileVersion,
    plan: WeightPlan,
    context: Pointer,
    contents = this.#hashes?.read(version),
  ): PooledTensor[] {
    const placed = [...placeWeights(this.#backend, context, plan).values()].flat();
    placed.sort((a, b) => fileOffset(a) - fileOffset(b));
    return placed.map((place): PooledTensor => {
      const { weight, tensor, bufferType } = place;
      const layout = this.#memory.layoutOf(bufferType);
      const { source, wanted } = this.#tensor(place, layout, (identity) =>
        fingerprints(identity, version, contents),
      );
      return { weight, tensor, layout, wanted, at: (pool_offset) => ({ ...source, pool_offset }) };
    });
  }

  #tensor(
    { weight, tensor, bufferType }: PlacedWeight,
    layout: PoolLayout,
    keysOf: (identity: Parameters<typeof fingerprints>[0]) => string[],
  ): { source: Omit<TensorLoad, 'pool_offset'>; wanted: WantedTensor } {
    const source = describeLoad(this.#backend, this.#memory, { weight, bufferType });
    const { row_elements, rows, parts } = source;
    return {
      source,
      wanted: {
        keys: keysOf({ layout: layout.name, type: weight.type, row_elements, rows, parts }),
        bytes: Number(this.#backend.ggml.ggml_backend_buft_get_alloc_size(bufferType, tensor)),
      },
    };
  }
}

function fileOffset({ weight }: PlacedWeight): number {
  return weight.parts[0]!.offset_bytes;
}
