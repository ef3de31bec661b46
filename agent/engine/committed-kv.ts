import type { Pointer } from '../../native/signature.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { type KvShape, type KvSource, type KvStorage, kv_block_tokens } from './kv-storage.ts';

/** Least tokens that a stage begins with. Lower: pipelines on devices that are nearly full; higher: none there. */
const tokens_min = 256;

/**
 * The KV of a stage: as much memory as it is to have, all of it behind its first rows from the start. The coordinator
 * hands out blocks for all stages by one table and must know that every stage has memory for each of them, so that
 * none is ever asked in the middle of a batch. Where a pool has less, it has less, and says so: the stage with the
 * least decides how many sequences are let in.
 */
class CommittedKv implements KvStorage {
  readonly #storage: KvStorage;
  readonly slabs = 1;
  readonly slab_rows: number;
  readonly slab_bytes: number;
  /** As the storage behind it: absent where that lies in no pool that others can address. */
  readonly poolOffset?: (matrix: number, row: number) => number;

  /** @param rows that have memory, from the first on */
  constructor(storage: KvStorage, rows: number, bytes: number) {
    this.#storage = storage;
    this.slab_rows = rows;
    this.slab_bytes = bytes;
    if (storage.poolOffset) this.poolOffset = (matrix, row) => storage.poolOffset!(matrix, row);
  }

  get buffer(): Pointer {
    return this.#storage.buffer;
  }

  get n_rows(): number {
    return this.#storage.n_rows;
  }

  get block_rows(): Int32Array {
    return this.#storage.block_rows;
  }

  get scratch_row(): number {
    return this.#storage.scratch_row;
  }

  get bytes(): number {
    return this.#storage.bytes;
  }

  get padding_bytes(): number {
    return this.#storage.padding_bytes ?? 0;
  }

  address(matrix: number): Pointer {
    return this.#storage.address(matrix);
  }

  bufferOf(matrix: number): Pointer {
    return this.#storage.bufferOf?.(matrix) ?? this.#storage.buffer;
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
    // What sequences use of it is nobody's business: all of it is taken.
  }

  free(): void {
    this.#storage.free();
  }
}

/** The first rows of a storage whose memory is all there: those that every stage of a pipeline has. */
export function firstRows(storage: KvStorage, rows_max: number): KvStorage {
  const rows = kv_block_tokens * Math.floor(rows_max / kv_block_tokens);
  if (rows >= storage.slab_rows) return storage;
  return new CommittedKv(storage, rows, Math.ceil((storage.slab_bytes * rows) / storage.slab_rows));
}

/**
 * A cache with all of its memory from the start, for as many tokens as there is room for.
 * @throws HpcserveError E_POOL_FULL
 */
export function commitAll(source: KvSource, shape: KvShape): KvStorage {
  const storage = source.open({ ...shape, at_once: true });
  const { tokens, matrices } = shape;
  for (let wanted = tokens; ; wanted /= 2) {
    const slabs = Math.min(storage.slabs, Math.max(1, Math.ceil(wanted / storage.slab_rows)));
    const numbers = Array.from({ length: slabs }, (_, slab) => slab);
    // A stage without attention has no keys and values: nothing is taken, and no stage is limited by it.
    if (matrices === 0 || storage.commit(numbers, 'evict')) {
      const bytes = slabs * storage.slab_bytes;
      storage.attach({ used_bytes: bytes, cached_bytes: 0, budget_bytes: bytes, reclaim: () => undefined });
      return new CommittedKv(storage, slabs * storage.slab_rows, bytes);
    }
    if (wanted > Math.min(tokens, tokens_min)) continue;
    storage.free();
    throw new HpcserveError('E_POOL_FULL', {
      what: `a stage has no room for the KV of ${kv_block_tokens * Math.ceil(wanted / kv_block_tokens)} tokens`,
      because: 'models in use hold the rest of the memory pool of its device',
    });
  }
}
