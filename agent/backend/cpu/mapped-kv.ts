import type { Ggml } from '../../../native/ggml.ts';
import { reserveAddresses, unmap, unmapPart } from '../../../native/memory-map.ts';
import type { Pointer } from '../../../native/signature.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import {
  type KvDemand,
  type KvShape,
  type KvUser,
  kv_block_tokens,
  rowsInOrder,
} from '../../engine/kv-storage.ts';
import type { KvRegions, PoolCache } from '../../memory/pool-cache.ts';
import type { Region } from '../../memory/region-list.ts';
import type { PoolOwner, ReservedRegion } from '../../memory/reuse-store.ts';

/**
 * Least tokens of a slab. Lower: less of it lies idle at the end of a sequence; higher: fewer system calls (one a layer
 * for keys, and one for values).
 */
const slab_tokens_min = 64;
/** Mappings of one cache at most, of the 65,530 that Linux gives a process (vm.max_map_count). */
const mappings_max = 8192;
/**
 * Addresses over tokens of memory. Lower: sequences may have to lie in several extents, which are gathered before they
 * are attended; higher: nothing but addresses.
 */
const address_factor = 4;

/** A pool whose pages can be mapped at other addresses as well. */
interface MappablePool {
  /** The unit in which parts of it can be mapped. */
  readonly page_bytes: number;
  mapPart(address: Pointer, offset: number, bytes: number): boolean;
}

/**
 * KV caches in a pool. The rows of a cache have addresses of their own, more of them than memory; slabs of the pool are
 * mapped behind them where sequences are, and unmapped where they were. So what a sequence grows to is one extent of
 * addresses, wherever in the pool its slabs lie, and attention reads it in place: the page table is the block table.
 * (As vAttention does with CUDA's virtual memory, https://arxiv.org/abs/2405.04437; Tangram §3.3 has a kernel instead.)
 */
export class MappedKv implements PoolCache {
  readonly model: string;
  readonly buffer: Pointer;
  readonly slab_rows: number;
  readonly slabs: number;
  readonly slab_bytes: number;
  readonly scratch_row: number;
  readonly n_rows: number;
  readonly block_rows: Int32Array;
  user: KvUser | undefined;
  readonly #ggml: Ggml;
  readonly #memory: MappablePool;
  readonly #pool: KvRegions;
  readonly #matrices: number;
  /** Of one matrix in one slab: whole pages. */
  readonly #chunk_bytes: number;
  readonly #matrix_bytes: number;
  readonly #base: Pointer;
  readonly #address_bytes: number;
  readonly #regions = new Map<number, Region<PoolOwner>>();
  readonly #scratch: Region<PoolOwner> | undefined;

  /** @throws HpcserveError E_NATIVE_MEMORY, E_POOL_FULL */
  constructor(
    ggml: Ggml,
    memory: MappablePool,
    pool: KvRegions,
    model: string,
    { matrices, row_bytes, tokens, model_matrices }: KvShape,
  ) {
    this.#ggml = ggml;
    this.#memory = memory;
    this.#pool = pool;
    this.model = model;
    this.#matrices = matrices;
    this.slab_rows = slabRows(row_bytes, tokens, model_matrices ?? matrices, memory.page_bytes);
    this.slabs = Math.ceil((address_factor * tokens) / this.slab_rows);
    this.#chunk_bytes = this.slab_rows * row_bytes;
    this.slab_bytes = Math.max(1, matrices) * this.#chunk_bytes;
    this.scratch_row = this.slabs * this.slab_rows;
    this.n_rows = this.scratch_row + 1;
    this.block_rows = rowsInOrder(this.scratch_row);
    this.#matrix_bytes = (this.slabs + 1) * this.#chunk_bytes;
    this.#address_bytes = Math.max(1, matrices) * this.#matrix_bytes;
    this.#base = reserveAddresses(this.#address_bytes);
    const buffer = ggml.ggml_backend_cpu_buffer_from_ptr(this.#base, this.#address_bytes);
    if (!buffer)
      throw new HpcserveError('E_NATIVE_MEMORY', { what: `no buffer for the KV cache of ${model}` });
    this.buffer = buffer;
    try {
      this.#scratch = this.#mapScratch();
    } catch (error) {
      this.free();
      throw error;
    }
  }

  get bytes(): number {
    return this.#regions.size * this.slab_bytes;
  }

  get padding_bytes(): number {
    return this.#scratch?.bytes ?? 0;
  }

  address(matrix: number): Pointer {
    return this.#base + BigInt(matrix * this.#matrix_bytes);
  }

  poolOffset(matrix: number, row: number): number {
    const slab = Math.floor(row / this.slab_rows);
    const region = this.#regions.get(slab);
    if (!region) throw new Error(`row ${row} of the KV cache of ${this.model} has no memory`);
    const row_bytes = this.#chunk_bytes / this.slab_rows;
    return region.offset + matrix * this.#chunk_bytes + (row % this.slab_rows) * row_bytes;
  }

  attach(user: KvUser): void {
    this.user = user;
  }

  commit(slabs: readonly number[], demand: KvDemand): boolean {
    const taken: number[] = [];
    for (const slab of slabs) {
      const region = this.#take(this.slab_bytes, demand);
      if (!region) {
        this.release(taken);
        return false;
      }
      this.#regions.set(slab, region);
      taken.push(slab);
      for (let matrix = 0; matrix < this.#matrices; matrix++) {
        const offset = region.offset + matrix * this.#chunk_bytes;
        if (this.#memory.mapPart(this.#chunkAddress(matrix, slab), offset, this.#chunk_bytes)) continue;
        this.release(taken);
        return false;
      }
    }
    return true;
  }

  release(slabs: readonly number[]): void {
    for (const slab of slabs) {
      // What cannot be unmapped, for want of a mapping, is mapped over before it is used again.
      for (let matrix = 0; matrix < this.#matrices; matrix++)
        unmapPart(this.#chunkAddress(matrix, slab), this.#chunk_bytes);
      this.#pool.give(this.#regions.get(slab)!);
      this.#regions.delete(slab);
    }
  }

  couldCommit(slabs: number): boolean {
    // Its own slabs are among those that could be given up.
    return slabs <= this.#pool.reclaimable(this.slab_bytes, this.#memory.page_bytes);
  }

  free(): void {
    this.release([...this.#regions.keys()]);
    if (this.#scratch) this.#pool.give(this.#scratch);
    this.#ggml.ggml_backend_buffer_free(this.buffer);
    unmap(this.#base, this.#address_bytes);
    this.#pool.closed(this);
  }

  /** Every region of the cache is mapped for one slab, and every slab that has memory has one region. */
  get regions(): ReadonlySet<Region<PoolOwner>> {
    return new Set([...this.#regions.values(), ...(this.#scratch ? [this.#scratch] : [])]);
  }

  #chunkAddress(matrix: number, slab: number): Pointer {
    return this.#base + BigInt(matrix * this.#matrix_bytes + slab * this.#chunk_bytes);
  }

  get #owner(): ReservedRegion {
    return { kind: 'reserved', use: 'kv', model: this.model };
  }

  #take(bytes: number, demand: KvDemand, owner = this.#owner): Region<PoolOwner> | undefined {
    return this.#pool.take(bytes, this.#memory.page_bytes, owner, demand, this);
  }

  /** One chunk is behind the last rows of all matrices: nobody reads what padding writes there. */
  #mapScratch(): Region<PoolOwner> {
    const region = this.#take(this.#chunk_bytes, 'evict', { ...this.#owner, fixed: true });
    if (!region)
      throw new HpcserveError('E_POOL_FULL', {
        what: `the KV cache of ${this.model} does not fit into the memory pool`,
        because: 'not even its first page is free: all of the pool is in use',
      });
    for (let matrix = 0; matrix < this.#matrices; matrix++)
      if (!this.#memory.mapPart(this.#chunkAddress(matrix, this.slabs), region.offset, this.#chunk_bytes)) {
        this.#pool.give(region);
        throw new HpcserveError('E_NATIVE_MEMORY', {
          what: `the pool was not mapped for the KV cache of ${this.model}`,
          because: 'a process has as many mappings as vm.max_map_count lets it have',
          try: 'have fewer models share the device, or ask for a larger vm.max_map_count',
        });
      }
    return region;
  }
}

/** Tokens of a slab: at least those wanted, whole blocks, and whole pages in every matrix. */
function slabRows(row_bytes: number, tokens: number, matrices: number, page_bytes: number): number {
  const wanted = Math.max(slab_tokens_min, Math.ceil((tokens * matrices) / mappings_max));
  let step = kv_block_tokens;
  while ((step * row_bytes) % page_bytes !== 0) step *= 2;
  return Math.ceil(wanted / step) * step;
}
