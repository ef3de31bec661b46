import type { Pointer } from '../../../native/signature.ts';
import { type KvDemand, type KvShape, type KvUser, kv_block_tokens } from '../../engine/kv-storage.ts';
import type { KvRegions, PoolCache } from '../../memory/pool-cache.ts';
import type { Region } from '../../memory/region-list.ts';
import type { PoolOwner } from '../../memory/reuse-store.ts';
import { type Place, type PoolSpan, placeIn } from '../pool-memory.ts';
import { requireAlignedBlocks } from './kv-alignment.ts';

/** Tokens by which it is larger or smaller. Lower: closer to what was asked for; higher: nothing but fewer tries. */
const slab_tokens = 256;
/** In front of every matrix: rows that only pad a batch are written there, wherever the matrix ends. */
const scratch_rows = kv_block_tokens;

/**
 * A KV cache that has all of its memory at once, in a pool whose memory cannot be mapped elsewhere: one region, in
 * which matrices lie one after another and the rows of each are in the order of blocks. Whatever the size of two such
 * caches, the rows that both have are the same ones.
 *
 *   region   [ scratch | rows of block 0, 1, 2 … ][ scratch | rows of block 0, 1, 2 … ]
 *              matrix 0                             matrix 1
 */
export class RegionKv implements PoolCache {
  readonly model: string;
  readonly slab_rows = slab_tokens;
  readonly slabs: number;
  readonly slab_bytes: number;
  readonly scratch_row = 0;
  readonly block_rows: Int32Array;
  user: KvUser | undefined;
  readonly #spans: readonly PoolSpan[];
  readonly #alignment: number;
  readonly #pool: KvRegions;
  readonly #matrices: number;
  readonly #row_bytes: number;
  #region: Region<PoolOwner> | undefined;
  #n_rows = 0;

  /** @throws HpcserveError E_ENGINE_OPTIONS */
  constructor(
    spans: readonly PoolSpan[],
    alignment: number,
    pool: KvRegions,
    model: string,
    { matrices, row_bytes, tokens }: KvShape,
  ) {
    requireAlignedBlocks(alignment, row_bytes);
    this.#spans = spans;
    this.#alignment = alignment;
    this.#pool = pool;
    this.model = model;
    this.#matrices = matrices;
    this.#row_bytes = row_bytes;
    this.slabs = Math.ceil(tokens / slab_tokens);
    this.slab_bytes = Math.max(1, matrices) * slab_tokens * row_bytes;
    this.block_rows = Int32Array.from(
      { length: (this.slabs * slab_tokens) / kv_block_tokens },
      (_, block) => scratch_rows + block * kv_block_tokens,
    );
  }

  get buffer(): Pointer {
    return this.#place().buffer;
  }

  get n_rows(): number {
    return this.#n_rows;
  }

  get bytes(): number {
    return this.#region?.bytes ?? 0;
  }

  get regions(): ReadonlySet<Region<PoolOwner>> {
    return new Set(this.#region ? [this.#region] : []);
  }

  address(matrix: number): Pointer {
    return this.#place().address + BigInt(matrix * this.#matrixSize_bytes(this.#n_rows));
  }

  attach(user: KvUser): void {
    this.user = user;
  }

  /** @param slabs the first ones, once: it does not grow */
  commit(slabs: readonly number[], demand: KvDemand): boolean {
    if (this.#region) throw new Error(`the KV cache of ${this.model} has its memory already`);
    const n_rows = scratch_rows + slabs.length * slab_tokens;
    const bytes = Math.max(1, this.#matrices) * this.#matrixSize_bytes(n_rows);
    const owner = { kind: 'reserved', use: 'kv', model: this.model, fixed: true } as const;
    this.#region = this.#pool.take(bytes, this.#alignment, owner, demand, this);
    if (!this.#region) return false;
    this.#n_rows = n_rows;
    return true;
  }

  release(): void {
    throw new Error('memory that was taken at once is given back at once');
  }

  couldCommit(slabs: number): boolean {
    return this.#pool.reclaimable(slabs * this.slab_bytes, this.#alignment) > 0;
  }

  free(): void {
    if (this.#region) this.#pool.give(this.#region);
    this.#pool.closed(this);
  }

  #place(): Place {
    if (!this.#region) throw new Error(`the KV cache of ${this.model} has no memory yet`);
    return placeIn(this.#spans, this.#region.offset);
  }

  #matrixSize_bytes(n_rows: number): number {
    return Math.ceil((n_rows * this.#row_bytes) / this.#alignment) * this.#alignment;
  }
}
