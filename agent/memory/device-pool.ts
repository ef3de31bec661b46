import { ownMemory_bytes } from '../../host/process-memory.ts';
import type { GgufFile } from '../../native/formats/gguf-reader.ts';
import type { EngineOptions } from '../../spec/engine-contract.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { PoolReport } from '../../spec/pool-report.ts';
import type { Backend } from '../backend/backend.ts';
import type { PoolMemory } from '../backend/pool-memory.ts';
import { type EngineMemory, EngineOpening } from '../engine/engine-opening.ts';
import type { KvSource } from '../engine/kv-storage.ts';
import { LayerKv } from '../engine/layer-kv.ts';
import type { ParkingDisk } from '../engine/parking-disk.ts';
import type { ScratchSource } from '../engine/scratch.ts';
import { StageOpening } from '../engine/stage-opening.ts';
import type { WeightPlan } from '../engine/weight-plan.ts';
import type { LoadBeside, WeightSource } from '../engine/weights.ts';
import { ModelFiles } from './model-files.ts';
import type { TensorRange } from './peers/peer-messages.ts';
import type { KvRegions, PoolCache } from './pool-cache.ts';
import type { ManifestModel } from './pool-manifest.ts';
import type { ModelUse } from './pooled-loading.ts';
import { PooledScratch } from './pooled-scratch.ts';
import { type OffsetRange, type Region, RegionList } from './region-list.ts';
import { assumed_bandwidths, type PoolOwner, ReuseStore } from './reuse-store.ts';
import { WeightPool, type WeightPoolOptions } from './weight-pool.ts';

export interface DevicePoolOptions extends WeightPoolOptions {
  /** Rounded up to whole huge pages; nothing of it is taken before it is written. */
  pool_bytes: number;
  /** Takes all memory at once instead of as it is written: slower to start, and no load pays for it. Default false. */
  populate?: boolean;
  /** Where KV of sequences may wait that give way to others; absent: in host memory alone. */
  disk?: ParkingDisk | undefined;
}

/** A range of the pool; see `DevicePool.reserve`. */
export interface PoolRange {
  readonly offset: number;
  readonly bytes: number;
  /** Nobody uses it any more. */
  give(): void;
}

/**
 * Of what a driver says is free beside others, what a pool takes. Lower: more is left for them, and for what a backend
 * takes beside the pool; higher: for models.
 */
const free_share = 0.9;
/**
 * Of what is free, a pool that was asked for takes as much at most. Backends take memory beside it, and end the process
 * where there is none. Lower: pools are cut that would do; higher: a graph may find nothing beside the pool.
 */
const asked_share_max = 0.95;

/** A page of a direct read. */
const reservation_alignment_bytes = 4096;

/**
 * The unified memory pool of one device (Tangram §3): weights, KV caches and intermediate results of all its models lie
 * in one memory, and one list of regions says where. Belongs to the thread that computes.
 */
export class DevicePool {
  readonly memory: PoolMemory;
  readonly store: ReuseStore;
  readonly backend: Backend;
  readonly disk: ParkingDisk | undefined;
  readonly #regions: RegionList<PoolOwner>;
  readonly #weights: WeightPool;
  readonly #caches = new Set<PoolCache>();
  readonly #files = new ModelFiles();
  #cut: HpcserveError | undefined;

  /** @throws HpcserveError E_NATIVE_MEMORY */
  constructor(backend: Backend, options: DevicePoolOptions) {
    this.backend = backend;
    this.disk = options.disk;
    this.memory = backend.openPool(options.pool_bytes);
    try {
      if (options.populate) this.memory.populate();
    } catch (error) {
      this.memory.free();
      throw error;
    }
    this.#regions = new RegionList<PoolOwner>(this.memory.bytes, this.memory.alignment_bytes);
    for (const { offset, bytes } of this.memory.gaps) this.#regions.allocateAt(offset, bytes, gap);
    this.store = new ReuseStore(
      this.#regions,
      (to, from, bytes) => this.memory.move(to, from, bytes),
      assumed_bandwidths,
      (bytes) => this.#relieve(bytes),
    );
    this.#weights = new WeightPool(backend, this.memory, this.store, options);
  }

  /**
   * The largest pool that is to be had, up to the size of the options. Of a device, others may have a part: what its
   * driver says is free. Of a host, the kernel gives less where memory is not overcommitted (vm.overcommit_memory 2):
   * addresses count before anything is written, and how many there are is found out.
   * @throws HpcserveError E_NATIVE_MEMORY: not even a sixteenth of it
   */
  static largest(backend: Backend, options: DevicePoolOptions): DevicePool {
    for (let pool_bytes = withRoomBeside(backend, options.pool_bytes); ; )
      try {
        const pool = new DevicePool(backend, { ...options, pool_bytes });
        if (pool_bytes < options.pool_bytes) pool.#cut = cutPool(pool, options.pool_bytes);
        return pool;
      } catch (error) {
        if (!(error instanceof HpcserveError) || error.code !== 'E_NATIVE_MEMORY') throw error;
        const half = pool_bytes / 2;
        const free = backend.addressable ? half : Math.floor(free_share * backend.memory().free_bytes);
        pool_bytes = free < pool_bytes ? free : half;
        if (pool_bytes < options.pool_bytes / 16) throw error;
      }
  }

  /** E_NATIVE_MEMORY where it is smaller than it was to be, with why. */
  get cut(): HpcserveError | undefined {
    return this.#cut;
  }

  /**
   * Begins to load a model; the engine that comes of it has all its memory from the pool.
   * @throws HpcserveError E_ENGINE_OPTIONS, E_ENGINE_MODEL, E_MODEL_*, E_POOL_*
   */
  open(options: EngineOptions, use: ModelUse = {}, beside: LoadBeside = 'nobody'): EngineOpening {
    const file = this.#files.open(options.model_path);
    return new EngineOpening(options, this.#memoryOf(options, use), beside, this.backend, file);
  }

  /**
   * Begins to load a stage of a model, with all of its KV from the start.
   * @param kv of the model here, which other stages of it have too
   * @throws as `open`
   */
  openStage(options: EngineOptions, use: ModelUse, beside: LoadBeside, kv: LayerKv): StageOpening {
    const file = this.#files.open(options.model_path);
    return new StageOpening(options, { ...this.#memoryOf(options, use), kv }, beside, this.backend, file);
  }

  /** The KV of a pipeline's stages here. */
  layerKv(model: string): LayerKv {
    return new LayerKv(this.kv(model));
  }

  #memoryOf({ model_path }: EngineOptions, use: ModelUse): EngineMemory {
    const model = use.model ?? model_path;
    const { disk } = this;
    return { weights: this.weights(use), kv: this.kv(model), scratch: this.#scratch(model), disk };
  }

  /** Kernels that are wrong on this device, of those that loads needed so far. */
  get kernels_left_out(): readonly HpcserveError[] {
    return this.backend.kernels_left_out;
  }

  /** Weights of one engine. */
  weights(use: ModelUse = {}): WeightSource {
    return this.#weights.source(use);
  }

  /** The KV cache of one engine. */
  kv(model: string): KvSource {
    return {
      open: (shape) => {
        const cache = this.memory.openKv(this.#kvRegions, model, shape);
        this.#caches.add(cache);
        return cache;
      },
    };
  }

  #scratch(model: string): ScratchSource {
    const owner = { kind: 'reserved', use: 'scratch', model } as const;
    return {
      open: () =>
        new PooledScratch(
          this.backend,
          this.memory,
          (bytes) =>
            this.#regions.allocate(bytes, owner) ??
            this.#takeByForce(bytes, this.memory.alignment_bytes, owner),
          (region) => this.#regions.free(region),
        ),
    };
  }

  /**
   * A part of the pool for its owner alone, whatever lies there: tensors that nobody uses go for it.
   * @returns undefined where there is no room for it
   */
  reserve(bytes: number, use: 'arena' | 'scratch', model: string): PoolRange | undefined {
    const owner = { kind: 'reserved', use, model } as const;
    const alignment = Math.max(reservation_alignment_bytes, this.memory.alignment_bytes);
    const region =
      this.#regions.allocate(bytes, owner, alignment) ?? this.#takeByForce(bytes, alignment, owner);
    return region && { offset: region.offset, bytes: region.bytes, give: () => this.#regions.free(region) };
  }

  /** S and S′ of Equation 3: bytes of a model in the pool, and how many of them are there. */
  affinity(file: GgufFile, plan: WeightPlan): { model_bytes: number; reusable_bytes: number } {
    return this.#weights.affinity(file, plan);
  }

  /**
   * The contents of a model file were hashed: its tensors are shared with files that have the same ones from now on.
   * @throws HpcserveError E_POOL_LOAD, E_MODEL_*
   */
  adoptContents(path: string): void {
    this.#weights.adoptContents(this.#files.open(path));
  }

  /** See `WeightPool.manifest`. */
  manifest(): ManifestModel[] {
    return this.#weights.manifest();
  }

  /** Indices of the tensors that lie in the pool as in their files, by the SHA-256 of their bytes. */
  heldContents(contents: readonly string[]): number[] {
    return contents.flatMap((content, index) => (this.#weights.placeOf(content) ? [index] : []));
  }

  /** @returns undefined where the tensor is not in the pool now, or has no such bytes */
  readContent({ content, offset, bytes }: TensorRange): Uint8Array<ArrayBuffer> | undefined {
    const place = this.#weights.placeOf(content);
    if (!place || offset + bytes > place.bytes) return undefined;
    const read = new Uint8Array(bytes);
    this.memory.read(place.offset + offset, read);
    return read;
  }

  report(): PoolReport {
    const { active_bytes, reusable_bytes, kv_bytes, scratch_bytes, lost_bytes, ...rest } = this.store.stats();
    const { pool_bytes, arena_bytes, free_bytes, largest_free_bytes, regions } = rest;
    const resident_bytes = this.memory.resident_bytes;
    const report: PoolReport = {
      pool_bytes,
      weights_bytes: active_bytes,
      reusable_bytes,
      kv_bytes,
      scratch_bytes,
      lost_bytes,
      free_bytes,
      largest_free_bytes,
      regions,
      resident_bytes,
      outside_pool_bytes: Math.max(0, ownMemory_bytes() - resident_bytes),
      resident_models: [...this.store.bytesByModel()].map(([model, bytes]) => ({ model, bytes })),
      models: [...this.#caches].map(({ model, user }) => ({
        model,
        weights_bytes: this.store.usedWeights_bytes(model),
        kv_bytes_used: user?.used_bytes ?? 0,
        kv_bytes_cached: user?.cached_bytes ?? 0,
        kv_bytes_budget: user?.budget_bytes ?? 0,
      })),
    };
    if (arena_bytes > 0) report.arena_bytes = arena_bytes;
    return report;
  }

  /**
   * Compares regions, tensors, leases and KV caches with one another.
   * @throws HpcserveError E_POOL_INTEGRITY
   */
  verify(): void {
    this.store.verify();
    const known = new Set<Region<PoolOwner>>();
    for (const cache of this.#caches) for (const region of cache.regions) known.add(region);
    for (const region of this.#regions) {
      const { owner } = region;
      if (owner?.kind !== 'reserved' || owner.use !== 'kv') continue;
      if (!known.delete(region)) throw damaged(`the region at ${region.offset} belongs to no KV cache`);
    }
    for (const { offset } of known) throw damaged(`a KV cache says that it has a region at ${offset}`);
  }

  /** Ends the loading threads and frees the memory. No engine may use it any more. */
  async close(): Promise<void> {
    await this.#weights.close();
    this.memory.free();
  }

  get #kvRegions(): KvRegions {
    return {
      take: (bytes, alignment, owner, demand, asker, within) =>
        this.#regions.allocate(bytes, owner, alignment, within) ??
        (demand === 'evict' ? this.#takeByForce(bytes, alignment, owner, asker, within) : undefined),
      give: (region) => this.#regions.free(region),
      reclaimable: (bytes, alignment, within) =>
        this.store.reclaimable(bytes, alignment, ({ use, fixed }) => use === 'kv' && !fixed, within),
      closed: (cache) => this.#caches.delete(cache),
    };
  }

  /**
   * Tensors that nobody uses go first, then what other caches keep for later: as much of it, again where that was
   * scattered, until they keep nothing.
   */
  #takeByForce(
    bytes: number,
    alignment: number,
    owner: PoolOwner,
    asker?: PoolCache,
    within?: OffsetRange,
  ): Region<PoolOwner> | undefined {
    while (this.store.reclaim(bytes, alignment, within) === undefined)
      if (!this.#relieve(bytes, asker)) return undefined;
    return this.#regions.allocate(bytes, owner, alignment, within);
  }

  /** @returns whether any cache gave something up */
  #relieve(bytes: number, except?: PoolCache): boolean {
    const before = this.#regions.free_bytes;
    for (const cache of this.#caches) {
      const missing = bytes - (this.#regions.free_bytes - before);
      if (cache !== except && missing > 0) cache.user?.reclaim(missing);
    }
    return this.#regions.free_bytes > before;
  }
}

/** So much of a device, or less where that would leave nothing beside the pool. */
function withRoomBeside(backend: Backend, pool_bytes: number): number {
  if (backend.addressable) return pool_bytes;
  const { free_bytes } = backend.memory();
  // Of what is not there at all, the caller is told.
  const isTight = pool_bytes > asked_share_max * free_bytes && pool_bytes <= free_bytes;
  return isTight ? Math.floor(free_share * free_bytes) : pool_bytes;
}

/** Between two buffers: no region may lie in both. */
const gap: PoolOwner = { kind: 'reserved', use: 'gap', model: '' };

function damaged(because: string): HpcserveError {
  return new HpcserveError('E_POOL_INTEGRITY', { what: 'the memory pool contradicts itself', because });
}

function cutPool({ backend, memory }: DevicePool, asked_bytes: number): HpcserveError {
  const gib = (bytes: number): string => `${(bytes / 2 ** 30).toFixed(2)} GiB`;
  const { total_bytes } = backend.memory();
  // What a CPU says of itself are its instruction sets.
  const where = backend.addressable ? 'in host memory' : `of ${backend.description}`;
  return new HpcserveError('E_NATIVE_MEMORY', {
    what: `the memory pool ${where} has ${gib(memory.bytes)} in place of ${gib(asked_bytes)}`,
    because: backend.addressable
      ? 'the kernel gave no more (vm.overcommit_memory, ulimit -v)'
      : `others have memory of the device, which has ${gib(total_bytes)}, or nothing would be left beside the pool`,
    try: backend.addressable
      ? 'make the pool smaller (sharing.pool_gb)'
      : 'see who has it (nvidia-smi, rocm-smi), end that, and start the replica again; or make the pool smaller (sharing.pool_gb)',
  });
}
