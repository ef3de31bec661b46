import { adviseHugePages } from '../../native/huge-pages.ts';
import type { Pointer } from '../../native/signature.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { Backend } from '../backend/backend.ts';
import { type KvShape, type KvStorage, kv_block_tokens, rowsInOrder } from './kv-storage.ts';

/** Of matrices in bytes: what every backend of ggml asks for, and a cache line. */
const alignment = 256;

/** Memory of an engine's own, all of it taken at once: one slab. */
export class OwnKvStorage implements KvStorage {
  readonly buffer: Pointer;
  readonly slab_rows: number;
  readonly slabs = 1;
  readonly slab_bytes: number;
  readonly scratch_row: number;
  readonly n_rows: number;
  readonly block_rows: Int32Array;
  readonly #backend: Backend;
  readonly #base: Pointer;
  readonly #matrix_bytes: number;

  /** @throws HpcserveError E_NATIVE_MEMORY */
  constructor(backend: Backend, { matrices, row_bytes, tokens }: KvShape) {
    this.#backend = backend;
    this.slab_rows = Math.floor(tokens / kv_block_tokens) * kv_block_tokens;
    this.scratch_row = this.slab_rows;
    this.n_rows = this.scratch_row + 1;
    this.block_rows = rowsInOrder(this.slab_rows);
    this.#matrix_bytes = Math.ceil((row_bytes * (this.slab_rows + 1)) / alignment) * alignment;
    this.slab_bytes = Math.max(alignment, matrices * this.#matrix_bytes);
    const { ggml, plain } = backend;
    const buffer = ggml.ggml_backend_buft_alloc_buffer(plain, this.slab_bytes);
    if (!buffer)
      throw new HpcserveError('E_NATIVE_MEMORY', {
        what: `no ${(this.slab_bytes / 2 ** 30).toFixed(2)} GiB of memory for a KV cache of ${tokens} tokens`,
        try: 'lower kv_tokens, use kv_type q8_0, or ask for more memory',
      });
    this.buffer = buffer;
    this.#base = ggml.ggml_backend_buffer_get_base(buffer)!;
    if (backend.addressable) adviseHugePages(this.#base, this.slab_bytes);
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
    this.#backend.ggml.ggml_backend_buffer_free(this.buffer);
  }
}
