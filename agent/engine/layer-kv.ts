import type { Pointer } from '../../native/signature.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { commitAll } from './committed-kv.ts';
import { type KvShape, type KvSource, type KvStorage, kv_block_tokens } from './kv-storage.ts';

/** Of keys and of values. */
const matrices_per_layer = 2;

interface LayerCache {
  readonly layer: number;
  readonly storage: KvStorage;
  /** Stages that have it, and transfers that write to it. */
  users: number;
  /** Of those, transfers. */
  writers: number;
}

/**
 * The KV of one model on one device, layer by layer, for its stages: while a pipeline changes, the stage that computes
 * and the one that is prepared have the layers in common that both compute. Rows are the same in all layers, and all
 * of them have their memory from the start; see `CommittedKv`. A layer's memory is given back with its last stage, and
 * not before the last transfer has ended that writes to it.
 */
export class LayerKv implements KvSource {
  readonly #source: KvSource;
  readonly #layers = new Map<number, LayerCache>();

  constructor(source: KvSource) {
    this.#source = source;
  }

  /** @throws HpcserveError E_POOL_FULL, E_NATIVE_MEMORY, E_REFACTOR_BUSY */
  open(shape: KvShape): KvStorage {
    const { layers } = shape;
    if (!layers || layers.length === 0) return commitAll(this.#source, shape);
    const before = new Set(this.#layers.keys());
    try {
      for (const layer of layers) this.#require(layer, shape);
      // The least of them is what all have.
      const caches = layers.map((layer) => this.#layers.get(layer)!);
      const storage = new JoinedKv(caches, (gone) => this.#release(gone));
      for (const cache of caches) cache.users++;
      return storage;
    } catch (error) {
      for (const [layer, cache] of [...this.#layers]) if (!before.has(layer)) this.#drop(cache);
      throw error;
    }
  }

  #require(layer: number, { tokens, matrices: _, ...shape }: KvShape): void {
    const known = this.#layers.get(layer);
    if (known && known.writers > 0)
      throw new HpcserveError('E_REFACTOR_BUSY', {
        what: `layer ${layer} cannot come to this device now`,
        because: 'keys and values of a change that is over are still being written there',
        try: 'ask again in some seconds',
      });
    if (known) return;
    const [first] = this.#layers.values();
    const wanted = Math.min(tokens, first?.storage.slab_rows ?? tokens);
    const own: KvShape = { ...shape, tokens: wanted, matrices: matrices_per_layer, layers: [layer] };
    const storage = commitAll(this.#source, own);
    this.#layers.set(layer, { layer, storage, users: 0, writers: 0 });
  }

  #release(caches: readonly LayerCache[]): void {
    for (const cache of caches) if (--cache.users === 0) this.#drop(cache);
  }

  #drop({ layer, storage }: LayerCache): void {
    this.#layers.delete(layer);
    storage.free();
  }
}

/** Caches of layers as one. */
class JoinedKv implements KvStorage {
  readonly slabs = 1;
  readonly slab_rows: number;
  readonly slab_bytes: number;
  readonly n_rows: number;
  readonly scratch_row: number;
  readonly block_rows: Int32Array;
  /** As the caches: absent where they lie in no pool that others can address. */
  readonly poolOffset?: (matrix: number, row: number) => number;
  readonly #caches: readonly LayerCache[];
  readonly #release: (caches: readonly LayerCache[]) => void;

  /** @throws HpcserveError E_POOL_FULL: their rows are not the same */
  constructor(caches: readonly LayerCache[], release: (caches: readonly LayerCache[]) => void) {
    const storages = caches.map(({ storage }) => storage);
    const [first] = storages;
    this.slab_rows = Math.min(...storages.map(({ slab_rows }) => slab_rows));
    this.slab_bytes = storages.reduce((sum, { slab_bytes }) => sum + slab_bytes, 0);
    this.n_rows = Math.min(...storages.map(({ n_rows }) => n_rows));
    this.scratch_row = first!.scratch_row;
    this.block_rows = first!.block_rows;
    this.#caches = caches;
    this.#release = release;
    if (storages.every((storage) => storage.poolOffset))
      this.poolOffset = (matrix, row) => this.#of(matrix).poolOffset!(matrix % matrices_per_layer, row);
    const blocks = this.slab_rows / kv_block_tokens;
    const isSame = ({ scratch_row, block_rows }: KvStorage): boolean =>
      scratch_row === this.scratch_row &&
      block_rows[0] === this.block_rows[0] &&
      block_rows[blocks - 1] === this.block_rows[blocks - 1];
    if (!storages.every(isSame))
      throw new HpcserveError('E_POOL_FULL', {
        what: 'a stage has no room for KV like that of the layers that are here already',
        because: 'models in use hold the rest of the memory pool of its device',
      });
  }

  get buffer(): Pointer {
    return this.#caches[0]!.storage.buffer;
  }

  get bytes(): number {
    return this.#caches.reduce((sum, { storage }) => sum + storage.bytes, 0);
  }

  get padding_bytes(): number {
    return this.#caches.reduce((sum, { storage }) => sum + (storage.padding_bytes ?? 0), 0);
  }

  bufferOf(matrix: number): Pointer {
    return this.#of(matrix).buffer;
  }

  address(matrix: number): Pointer {
    return this.#of(matrix).address(matrix % matrices_per_layer);
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

  hold({ begin, end }: { begin: number; end: number }): () => void {
    const held = this.#caches.filter(({ layer }) => layer >= begin && layer < end);
    for (const cache of held) {
      cache.users++;
      cache.writers++;
    }
    let isHeld = true;
    return () => {
      if (!isHeld) return;
      isHeld = false;
      for (const cache of held) cache.writers--;
      this.#release(held);
    };
  }

  free(): void {
    this.#release(this.#caches);
  }

  #of(matrix: number): KvStorage {
    return this.#caches[Math.floor(matrix / matrices_per_layer)]!.storage;
  }
}
