import { GgmlType, placeTensor } from '../../native/ggml.ts';
import type { Pointer } from '../../native/signature.ts';
import type { KvType } from '../../spec/engine-contract.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { Backend, HostCopy } from '../backend/backend.ts';
import type { Architecture } from './architecture.ts';
import { type KvShape, type KvSource, type KvStorage, kv_block_tokens } from './kv-storage.ts';
import { OwnKvStorage } from './own-kv-storage.ts';

const kvTypes: Record<KvType, number> = { f16: GgmlType.F16, q8_0: GgmlType.Q8_0, f32: GgmlType.F32 };

export interface KvLayer {
  /** Tensor [n_head_kv × head_dim, n_rows]. */
  keys: Pointer;
  values: Pointer;
  keys_address: number;
  values_address: number;
}

/** Rows of a matrix that lie side by side, and what the host has of them. */
export interface RowRun {
  matrix: number;
  /** The first of them. */
  row: number;
  host: Uint8Array;
}

/**
 * The KV cache of a stage as ggml sees it: per attention layer one matrix of key rows and one of value rows, a row
 * per token. Rows lie in a storage; one row is scratch: rows that only pad a batch write there.
 */
export class KvMemory {
  readonly storage: KvStorage;
  /** ggml type of keys and values. */
  readonly type: number;
  readonly row_bytes: number;
  readonly head_bytes: number;
  /** Elements of a head. */
  readonly head_dim: number;
  /** Rows of a matrix, those without memory and the scratch row included. */
  readonly n_rows: number;
  /** Keys and values of one token over all layers. */
  readonly token_bytes: number;
  readonly #layers = new Map<number, KvLayer>();
  readonly #backend: Backend;
  readonly #context: Pointer;

  /**
   * @param layers indices of the attention layers of the stage
   * @param source absent: memory of its own, all of it taken at once
   * @throws HpcserveError E_NATIVE_MEMORY, E_POOL_FULL, E_ENGINE_OPTIONS (a head does not fill whole blocks of the
   * type)
   */
  constructor(
    backend: Backend,
    model: Architecture,
    layers: readonly number[],
    { kv_tokens, kv_type }: { kv_tokens: number; kv_type: KvType },
    source?: KvSource,
  ) {
    const { ggml } = backend;
    this.#backend = backend;
    this.type = kvTypes[kv_type];
    const width = model.n_head_kv * model.head_dim;
    // Scattered rows are gathered as 32-bit words.
    const wholeWords = Number(ggml.ggml_row_size(this.type, width)) % 4 === 0;
    if (model.head_dim % Number(ggml.ggml_blck_size(this.type)) !== 0 || !wholeWords)
      throw new HpcserveError('E_ENGINE_OPTIONS', {
        what: `kv_type ${kv_type} does not fit heads of ${model.head_dim} elements`,
        try: 'use kv_type f16',
      });
    this.row_bytes = Number(ggml.ggml_row_size(this.type, width));
    this.head_dim = model.head_dim;
    this.head_bytes = Number(ggml.ggml_row_size(this.type, model.head_dim));
    this.token_bytes = 2 * layers.length * this.row_bytes;
    const shape: KvShape = {
      matrices: 2 * layers.length,
      row_bytes: this.row_bytes,
      tokens: kv_tokens,
      layers,
      model_matrices: 2 * model.n_layer,
    };
    this.storage = source ? source.open(shape) : new OwnKvStorage(backend, shape);
    this.n_rows = this.storage.n_rows;
    this.#context = ggml.ggml_init({
      mem_size: (2 * layers.length + 1) * Number(ggml.ggml_tensor_overhead()),
      mem_buffer: null,
      no_alloc: true,
    })!;
    const place = (matrix: number): { tensor: Pointer; address: Pointer } => {
      const tensor = ggml.ggml_new_tensor_2d(this.#context, this.type, width, this.n_rows)!;
      const address = this.storage.address(matrix);
      placeTensor(tensor, this.#bufferOf(matrix), address);
      return { tensor, address };
    };
    layers.forEach((layer, index) => {
      const keys = place(2 * index);
      const values = place(2 * index + 1);
      this.#layers.set(layer, {
        keys: keys.tensor,
        values: values.tensor,
        keys_address: Number(keys.address),
        values_address: Number(values.address),
      });
    });
  }

  get bytes(): number {
    return this.storage.bytes;
  }

  get scratch_row(): number {
    return this.storage.scratch_row;
  }

  layer(index: number): KvLayer {
    const layer = this.#layers.get(index);
    if (!layer) throw new Error(`layer ${index} has no KV cache in this stage`);
    return layer;
  }

  get layers(): ReadonlyMap<number, KvLayer> {
    return this.#layers;
  }

  /** Row of a token of a sequence with these blocks. */
  rowOf(blocks: ArrayLike<number>, position: number): number {
    const block = blocks[Math.floor(position / kv_block_tokens)]!;
    return this.storage.block_rows[block]! + (position % kv_block_tokens);
  }

  /** Copies the first rows of a block of all matrices to another block. */
  copyRows(from_block: number, to_block: number, rows: number): void {
    const { block_rows } = this.storage;
    const from = block_rows[from_block]!;
    const to = block_rows[to_block]!;
    for (let matrix = 0; matrix < this.n_matrices; matrix++)
      this.#backend.move(
        this.#bufferOf(matrix),
        this.#address(matrix, to),
        this.#address(matrix, from),
        rows * this.row_bytes,
      );
  }

  /** Copies rows of one matrix to the host; matrices count as keys, values, keys of the next layer, and so on. */
  readRows(matrix: number, row: number, into: Uint8Array): void {
    this.#backend.read(this.#bufferOf(matrix), this.#address(matrix, row), into);
  }

  writeRows(matrix: number, row: number, from: Uint8Array): void {
    this.#backend.write(this.#bufferOf(matrix), this.#address(matrix, row), from);
  }

  /** As `readRows`, of many runs at once. */
  readRuns(runs: Iterable<RowRun>): void {
    this.#backend.readAll(this.#copiesOf(runs));
  }

  writeRuns(runs: Iterable<RowRun>): void {
    this.#backend.writeAll(this.#copiesOf(runs));
  }

  /** Zeros in all rows of blocks: whoever computes with them has numbers, whatever they mean. */
  clearBlocks(blocks: readonly number[]): void {
    const host = new Uint8Array(kv_block_tokens * this.row_bytes);
    const runs = blocks.flatMap((block) =>
      Array.from({ length: this.n_matrices }, (_, matrix): RowRun => {
        const row = this.storage.block_rows[block]!;
        return { matrix, row, host };
      }),
    );
    this.writeRuns(runs);
  }

  *#copiesOf(runs: Iterable<RowRun>): Generator<HostCopy> {
    for (const { matrix, row, host } of runs)
      yield { buffer: this.#bufferOf(matrix), address: this.#address(matrix, row), host };
  }

  /**
   * Of the keys and values of layers [begin, end) of the model, in order.
   * @throws Error: not all of them are in this stage
   */
  matricesOf({ begin, end }: { begin: number; end: number }): number[] {
    const matrices: number[] = [];
    [...this.#layers.keys()].forEach((layer, index) => {
      if (layer >= begin && layer < end) matrices.push(2 * index, 2 * index + 1);
    });
    if (matrices.length !== 2 * (end - begin))
      throw new Error(`layers ${begin} to ${end} are not all in this stage`);
    return matrices;
  }

  /** Two a layer. */
  get n_matrices(): number {
    return 2 * this.#layers.size;
  }

  #address(matrix: number, row: number): Pointer {
    return this.storage.address(matrix) + BigInt(row * this.row_bytes);
  }

  #bufferOf(matrix: number): Pointer {
    return this.storage.bufferOf?.(matrix) ?? this.storage.buffer;
  }

  free(): void {
    this.storage.free();
    this.#backend.ggml.ggml_free(this.#context);
  }
}
