/**
 * The memory behind a KV cache, as the engine sees it: matrices of rows, one row a token, that lie at addresses of
 * their own. The addresses exist from the start; memory comes behind them in slabs, where and when it is asked for.
 */
import type { Ggml } from '../../native/ggml.ts';
import type { Pointer } from '../../native/signature.ts';
import { HpcserveError } from '../../spec/errors/error.ts';

/** Tokens per block: the unit of allocation, of sharing and of transfer. */
export const kv_block_tokens = 16;

export interface KvShape {
  /** Keys and values of every attention layer of the stage. */
  matrices: number;
  /** A multiple of 4. */
  row_bytes: number;
  /** Tokens at most, over all sequences. */
  tokens: number;
}

/**
 * Where memory for slabs may come from. `free`: only what nobody uses. `evict`: tensors that no instance uses, too, and
 * what other models only keep for later.
 */
export type KvDemand = 'free' | 'evict';

/** Who uses a storage, to those who look after all of them. Sizes are of whole slabs. */
export interface KvUser {
  readonly used_bytes: number;
  /** Kept for later only. */
  readonly cached_bytes: number;
  readonly budget_bytes: number;
  /** Others need memory: as many bytes as that, of what is kept for later. */
  reclaim(bytes: number): void;
}

/** Rows of all matrices together. Slab `i` is the rows from `i` × `slab_rows` on. */
export interface KvStorage {
  /** ggml's buffer of all matrices. */
  readonly buffer: Pointer;
  readonly slab_rows: number;
  readonly slabs: number;
  readonly slab_bytes: number;
  /** A row that always has memory and belongs to nobody. */
  readonly scratch_row: number;
  /** Bytes that are taken now. */
  readonly bytes: number;
  /** Address of row 0. */
  address(matrix: number): Pointer;
  /** Puts memory behind slabs that have none: all of them, or none where that is not possible now. */
  commit(slabs: readonly number[], demand: KvDemand): boolean;
  /** Gives the memory of slabs back. */
  release(slabs: readonly number[]): void;
  /** Whether so many slabs more could ever be had while those models are loaded that are loaded now. */
  couldCommit(slabs: number): boolean;
  /** Who uses it from now on. */
  attach(user: KvUser): void;
  free(): void;
}

/** Where the memory of a KV cache comes from: its own, or a pool that several models share. */
export interface KvSource {
  /** @throws HpcserveError E_NATIVE_MEMORY, E_POOL_FULL */
  open(shape: KvShape): KvStorage;
}

const alignment = 64;

/** Memory of an engine's own, all of it taken at once: one slab. */
export class OwnKvStorage implements KvStorage {
  readonly buffer: Pointer;
  readonly slab_rows: number;
  readonly slabs = 1;
  readonly slab_bytes: number;
  readonly scratch_row: number;
  readonly #ggml: Ggml;
  readonly #base: Pointer;
  readonly #matrix_bytes: number;

  /** @throws HpcserveError E_NATIVE_MEMORY */
  constructor(ggml: Ggml, { matrices, row_bytes, tokens }: KvShape) {
    this.#ggml = ggml;
    this.slab_rows = Math.floor(tokens / kv_block_tokens) * kv_block_tokens;
    this.scratch_row = this.slab_rows;
    this.#matrix_bytes = Math.ceil((row_bytes * (this.slab_rows + 1)) / alignment) * alignment;
    this.slab_bytes = Math.max(alignment, matrices * this.#matrix_bytes);
    const buffer = ggml.ggml_backend_buft_alloc_buffer(ggml.ggml_backend_cpu_buffer_type(), this.slab_bytes);
    if (!buffer)
      throw new HpcserveError('E_NATIVE_MEMORY', {
        what: `no ${(this.slab_bytes / 2 ** 30).toFixed(2)} GiB of memory for a KV cache of ${tokens} tokens`,
        try: 'lower kv_tokens, use kv_type q8_0, or ask for more memory',
      });
    this.buffer = buffer;
    this.#base = ggml.ggml_backend_buffer_get_base(buffer)!;
  }

  get bytes(): number {
    return this.slab_bytes;
  }

  address(matrix: number): Pointer {
    return this.#base + BigInt(matrix * this.#matrix_bytes);
  }

  commit(): boolean {
    return true;
  }

  release(): void {
    // It was taken as a whole, and is given back as a whole.
  }

  couldCommit(): boolean {
    return true;
  }

  attach(): void {
    // Nobody else can use it.
  }

  free(): void {
    this.#ggml.ggml_backend_buffer_free(this.buffer);
  }
}
