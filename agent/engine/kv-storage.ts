/**
 * The memory behind a KV cache, as the engine sees it: matrices of rows, one row a token, that lie at addresses of
 * their own. The addresses exist from the start; memory comes behind them in slabs, where and when it is asked for.
 */
import type { Pointer } from '../../native/signature.ts';

/** Tokens per block: the unit of allocation, of sharing and of transfer. */
export const kv_block_tokens = 16;

export interface KvShape {
  /** Keys and values of every attention layer of the stage. */
  matrices: number;
  /** A multiple of 4. */
  row_bytes: number;
  /** Tokens at most, over all sequences. */
  tokens: number;
  /** Layers of the model whose keys and values they are, two matrices each, in this order. */
  layers?: readonly number[];
  /** Of all layers of the model: caches of parts of it that are cut by this are alike. Absent: `matrices`. */
  model_matrices?: number;
  /**
   * All of its memory is committed once, right after it is opened. Where two caches are opened so, rows of a block have
   * the same numbers in both.
   */
  at_once?: boolean;
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

/**
 * Rows of all matrices together. Blocks have numbers in order, and slab `i` is the blocks of `slab_rows` tokens from
 * `i` × `slab_rows` on; where their rows lie, `block_rows` says.
 */
export interface KvStorage {
  /** ggml's buffer of all matrices, or of the first where each layer has its own. */
  readonly buffer: Pointer;
  /** Present: matrices have buffers of their own. */
  bufferOf?(matrix: number): Pointer;
  readonly slab_rows: number;
  readonly slabs: number;
  readonly slab_bytes: number;
  /** Rows of a matrix, those without memory and the scratch row included. */
  readonly n_rows: number;
  /**
   * By number of the block, its first row; the others follow it. Where addresses are mapped to memory, rows are in the
   * order of blocks; elsewhere a block has its rows from when its slab gets memory.
   */
  readonly block_rows: Int32Array;
  /** A row that always has memory and belongs to nobody. */
  readonly scratch_row: number;
  /** Bytes that are taken now. */
  readonly bytes: number;
  /** Of a pool, what it has beside those for as long as it is there: rows that only pad. Absent: nothing. */
  readonly padding_bytes?: number;
  /** Address of row 0. */
  address(matrix: number): Pointer;
  /** Where a row with memory lies in the pool; absent: it is no part of a pool that others can address. */
  poolOffset?(matrix: number, row: number): number;
  /** Puts memory behind slabs that have none: all of them, or none where that is not possible now. */
  commit(slabs: readonly number[], demand: KvDemand): boolean;
  /** Gives the memory of slabs back. */
  release(slabs: readonly number[]): void;
  /** Whether so many slabs more could ever be had while those models are loaded that are loaded now. */
  couldCommit(slabs: number): boolean;
  /** Who uses it from now on. */
  attach(user: KvUser): void;
  /**
   * Of a stage: keeps the memory of layers [begin, end), which a transfer writes to, whoever frees the storage
   * meanwhile.
   * @returns lets go of it
   */
  hold?(layers: { begin: number; end: number }): () => void;
  free(): void;
}

/** What of a storage those see to whom its rows are numbers. */
export type KvSlabStorage = Pick<
  KvStorage,
  'slab_rows' | 'slabs' | 'slab_bytes' | 'commit' | 'release' | 'couldCommit' | 'attach'
>;

/** Where the memory of a KV cache comes from: its own, or a pool that several models share. */
export interface KvSource {
  /** @throws HpcserveError E_NATIVE_MEMORY, E_POOL_FULL */
  open(shape: KvShape): KvStorage;
}

/** The first row of each block where row `n` is token `n`. */
export function rowsInOrder(rows: number): Int32Array {
  return Int32Array.from(
    { length: Math.floor(rows / kv_block_tokens) },
    (_, block) => block * kv_block_tokens,
  );
}
