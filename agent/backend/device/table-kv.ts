import type { Pointer } from '../../../native/signature.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import { type KvDemand, type KvShape, type KvUser, kv_block_tokens } from '../../engine/kv-storage.ts';
import type { KvRegions, PoolCache } from '../../memory/pool-cache.ts';
import type { Region } from '../../memory/region-list.ts';
import type { PoolOwner, ReservedRegion } from '../../memory/reuse-store.ts';
import type { PoolSpan } from '../pool-memory.ts';
import { alignedStep_rows, requireAlignedBlocks } from './kv-alignment.ts';

/**
 * Tokens of a slab. Within one a sequence is attended in place; one that has several is gathered before it is attended.
 * Lower: less lies idle at the end of a sequence; higher: longer sequences are attended in place.
 */
const slab_tokens = 256;
/** Blocks over those that may have memory at once: sequences begin in slabs of their own. */
const address_factor = 4;

/**
 * KV caches in a pool whose memory cannot be mapped elsewhere. A buffer of the pool is seen as a matrix of KV rows,
 * once for keys and values of each layer, each beginning one chunk behind the one before it; a slab is a region
 * anywhere in that buffer, and has the same row numbers in all matrices:
 *
 *   matrix 0  | … | rows r … r+255 | …        slab: one region of the pool
 *   matrix 1      | … | rows r … r+255 | …    [ chunk of 0 | chunk of 1 | … ]
 *
 * Blocks have numbers in the order of sequences, and `block_rows` is the table of where they are.
 */
export class TableKv implements PoolCache {
  readonly model: string;
  readonly buffer: Pointer;
  readonly slab_rows = slab_tokens;
  readonly slabs: number;
  readonly slab_bytes: number;
  readonly scratch_row: number;
  readonly n_rows: number;
  readonly block_rows: Int32Array;
  user: KvUser | undefined;
  readonly #pool: KvRegions;
  readonly #span: PoolSpan;
  readonly #alignment: number;
  readonly #row_bytes: number;
  /** Rows after which an address is aligned again. */
  readonly #step_rows: number;
  readonly #chunk_bytes: number;
  readonly #regions = new Map<number, Region<PoolOwner>>();
  readonly #scratch: Region<PoolOwner>;

  /**
   * @param spans of the pool; a cache lies in one of them
   * @param alignment of regions, and of what the device reads
   * @throws HpcserveError E_POOL_FULL, E_ENGINE_OPTIONS
   */
  constructor(
    spans: readonly PoolSpan[],
    alignment: number,
    pool: KvRegions,
    model: string,
    { matrices, row_bytes, tokens }: KvShape,
  ) {
    this.#pool = pool;
    this.model = model;
    this.#alignment = alignment;
    this.#row_bytes = row_bytes;
    requireAlignedBlocks(alignment, row_bytes);
    this.#step_rows = alignedStep_rows(alignment, row_bytes);
    this.#chunk_bytes = slab_tokens * row_bytes;
    // A region may begin between two rows.
    const slack_bytes = this.#step_rows * row_bytes;
    this.slab_bytes = Math.max(1, matrices) * this.#chunk_bytes + slack_bytes;
    this.slabs = Math.ceil((address_factor * tokens) / slab_tokens);
    this.block_rows = new Int32Array((this.slabs * slab_tokens) / kv_block_tokens).fill(-1);
    this.#span = this.#roomiest(spans);
    this.buffer = this.#span.buffer;
    const window_bytes = this.#span.end - this.#span.begin - Math.max(0, matrices - 1) * this.#chunk_bytes;
    this.n_rows = Math.max(1, Math.floor(window_bytes / row_bytes));
    const scratch = this.#take('evict', { ...this.#owner, fixed: true });
    if (!scratch)
      throw new HpcserveError('E_POOL_FULL', {
        what: `the KV cache of ${model} does not fit into the memory pool`,
        because: 'not even its first slab is free: all of the pool is in use',
      });
    this.#scratch = scratch;
    this.scratch_row = this.#firstRow(scratch);
  }

  get bytes(): number {
    return this.#regions.size * this.slab_bytes;
  }

  get padding_bytes(): number {
    return this.#scratch.bytes;
  }

  get regions(): ReadonlySet<Region<PoolOwner>> {
    return new Set([...this.#regions.values(), this.#scratch]);
  }

  address(matrix: number): Pointer {
    return this.#span.base + BigInt(matrix * this.#chunk_bytes);
  }

  attach(user: KvUser): void {
    this.user = user;
  }

  commit(slabs: readonly number[], demand: KvDemand): boolean {
    const taken: number[] = [];
    for (const slab of slabs) {
      const region = this.#take(demand);
      if (!region) {
        this.release(taken);
        return false;
      }
      this.#regions.set(slab, region);
      taken.push(slab);
      const first = this.#firstRow(region);
      const blocks = this.#blocksOf(slab);
      for (let index = 0; index < blocks.length; index++) blocks[index] = first + index * kv_block_tokens;
    }
    return true;
  }

  release(slabs: readonly number[]): void {
    for (const slab of slabs) {
      this.#blocksOf(slab).fill(-1);
      this.#pool.give(this.#regions.get(slab)!);
      this.#regions.delete(slab);
    }
  }

  couldCommit(slabs: number): boolean {
    return slabs <= this.#pool.reclaimable(this.slab_bytes, this.#alignment, this.#span);
  }

  free(): void {
    this.release([...this.#regions.keys()]);
    this.#pool.give(this.#scratch);
    this.#pool.closed(this);
  }

  #blocksOf(slab: number): Int32Array {
    const count = slab_tokens / kv_block_tokens;
    return this.block_rows.subarray(slab * count, (slab + 1) * count);
  }

  /** The first row that begins in a region, at an aligned address. */
  #firstRow({ offset }: Region<PoolOwner>): number {
    const step_bytes = this.#step_rows * this.#row_bytes;
    return Math.ceil((offset - this.#span.begin) / step_bytes) * this.#step_rows;
  }

  get #owner(): ReservedRegion {
    return { kind: 'reserved', use: 'kv', model: this.model };
  }

  #take(demand: KvDemand, owner = this.#owner): Region<PoolOwner> | undefined {
    return this.#pool.take(this.slab_bytes, this.#alignment, owner, demand, this, this.#span);
  }

  #roomiest(spans: readonly PoolSpan[]): PoolSpan {
    if (spans.length === 1) return spans[0]!;
    const room = spans.map((span) => this.#pool.reclaimable(this.slab_bytes, this.#alignment, span));
    return spans[room.indexOf(Math.max(...room))]!;
  }
}
