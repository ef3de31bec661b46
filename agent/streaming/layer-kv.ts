import type { Pointer } from '../../native/signature.ts';
import type { KvSource, KvStorage } from '../engine/kv-storage.ts';

/** A part's keys and values in those of its whole model: the matrices from `first` on. The whole has the memory. */
export function layerKv(whole: KvStorage, first: number): KvSource {
  return { open: () => new LayerKv(whole, first) };
}

/** What a part may do with them: know where they lie. */
class LayerKv implements KvStorage {
  readonly #whole: KvStorage;
  readonly #first: number;

  constructor(whole: KvStorage, first: number) {
    this.#whole = whole;
    this.#first = first;
  }

  get buffer(): Pointer {
    return this.#whole.buffer;
  }

  bufferOf(matrix: number): Pointer {
    return this.#whole.bufferOf?.(this.#first + matrix) ?? this.#whole.buffer;
  }

  get slab_rows(): number {
    return this.#whole.slab_rows;
  }

  get slabs(): number {
    return this.#whole.slabs;
  }

  get slab_bytes(): number {
    return this.#whole.slab_bytes;
  }

  get n_rows(): number {
    return this.#whole.n_rows;
  }

  get block_rows(): Int32Array {
    return this.#whole.block_rows;
  }

  get scratch_row(): number {
    return this.#whole.scratch_row;
  }

  get bytes(): number {
    return this.#whole.bytes;
  }

  address(matrix: number): Pointer {
    return this.#whole.address(this.#first + matrix);
  }

  commit(): boolean {
    throw new Error('memory for keys and values is taken for all layers together');
  }

  release(): void {
    throw new Error('memory for keys and values is given back for all layers together');
  }

  couldCommit(): boolean {
    throw new Error('memory for keys and values is taken for all layers together');
  }

  attach(): void {
    throw new Error('keys and values are used by the whole model');
  }

  free(): void {
    // The whole is freed.
  }
}
