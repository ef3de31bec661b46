/**
 * The memory behind the KV cache: per attention layer one matrix of key rows and one of value rows, a row
 * per token, in units of blocks. The last block is scratch: rows that only pad a batch write there.
 */
import { type Ggml, GgmlType } from '../../native/ggml.ts';
import type { Pointer } from '../../native/signature.ts';
import type { KvType } from '../../spec/engine-contract.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { Architecture } from './architecture.ts';

/** Tokens per block: the unit of allocation, of sharing and of transfer. */
export const kv_block_tokens = 16;

const kvTypes: Record<KvType, number> = { f16: GgmlType.F16, q8_0: GgmlType.Q8_0, f32: GgmlType.F32 };

export interface KvLayer {
  /** Tensor [n_head_kv × head_dim, n_rows]. */
  keys: Pointer;
  values: Pointer;
  keys_address: number;
  values_address: number;
}

export class KvMemory {
  readonly n_blocks: number;
  readonly bytes: number;
  /** ggml type of keys and values. */
  readonly type: number;
  readonly row_bytes: number;
  readonly head_bytes: number;
  /** First row of the scratch block. */
  readonly scratch_row: number;
  readonly #layers = new Map<number, KvLayer>();
  readonly #ggml: Ggml;
  readonly #context: Pointer;
  readonly #buffer: Pointer;

  /**
   * @param layers indices of the attention layers of the stage.
   * @throws HpcserveError E_NATIVE_MEMORY, E_ENGINE_OPTIONS (a head does not fill whole blocks of the KV type)
   */
  constructor(ggml: Ggml, model: Architecture, layers: readonly number[], kv_tokens: number, type: KvType) {
    this.#ggml = ggml;
    this.type = kvTypes[type];
    this.n_blocks = Math.floor(kv_tokens / kv_block_tokens);
    const width = model.n_head_kv * model.head_dim;
    // Scattered rows are gathered as 32-bit words.
    const wholeWords = Number(ggml.ggml_row_size(this.type, width)) % 4 === 0;
    if (model.head_dim % Number(ggml.ggml_blck_size(this.type)) !== 0 || !wholeWords)
      throw new HpcserveError('E_ENGINE_OPTIONS', {
        what: `kv_type ${type} does not fit heads of ${model.head_dim} elements`,
        try: 'use kv_type f16',
      });
    const rows = (this.n_blocks + 1) * kv_block_tokens;
    this.scratch_row = this.n_blocks * kv_block_tokens;
    this.row_bytes = Number(ggml.ggml_row_size(this.type, width));
    this.head_bytes = Number(ggml.ggml_row_size(this.type, model.head_dim));
    const alignment = 64;
    const matrixBytes = Math.ceil((this.row_bytes * rows) / alignment) * alignment;
    this.bytes = Math.max(alignment, 2 * layers.length * matrixBytes);
    this.#context = ggml.ggml_init({
      mem_size: (2 * layers.length + 1) * Number(ggml.ggml_tensor_overhead()),
      mem_buffer: null,
      no_alloc: true,
    })!;
    const buffer = ggml.ggml_backend_buft_alloc_buffer(ggml.ggml_backend_cpu_buffer_type(), this.bytes);
    if (!buffer) {
      ggml.ggml_free(this.#context);
      throw new HpcserveError('E_NATIVE_MEMORY', {
        what: `no ${(this.bytes / 2 ** 30).toFixed(2)} GiB of memory for a KV cache of ${kv_tokens} tokens`,
        try: 'lower kv_tokens, use kv_type q8_0, or ask for more memory',
      });
    }
    this.#buffer = buffer;
    const base = ggml.ggml_backend_buffer_get_base(buffer)!;
    const place = (index: number): { tensor: Pointer; address: number } => {
      const tensor = ggml.ggml_new_tensor_2d(this.#context, this.type, width, rows)!;
      const address = base + BigInt(index * matrixBytes);
      ggml.ggml_backend_tensor_alloc(buffer, tensor, address);
      return { tensor, address: Number(address) };
    };
    layers.forEach((layer, index) => {
      const keys = place(2 * index);
      const values = place(2 * index + 1);
      this.#layers.set(layer, {
        keys: keys.tensor,
        values: values.tensor,
        keys_address: keys.address,
        values_address: values.address,
      });
    });
  }

  layer(index: number): KvLayer {
    const layer = this.#layers.get(index);
    if (!layer) throw new Error(`layer ${index} has no KV cache in this stage`);
    return layer;
  }

  get layers(): ReadonlyMap<number, KvLayer> {
    return this.#layers;
  }

  free(): void {
    this.#ggml.ggml_backend_buffer_free(this.#buffer);
    this.#ggml.ggml_free(this.#context);
  }
}
