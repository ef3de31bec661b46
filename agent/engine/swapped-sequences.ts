import type { SwapPlace } from '../../spec/engine-contract.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { KvMemory } from './kv-memory.ts';
import type { ParkingDisk } from './parking-disk.ts';
import { type FiledKv, fileKv, type SwappedKv, swapInKv, swapOutKv, unfileKv } from './swapped-kv.ts';

/** Keys and values of sequences that gave way, in host memory or on the disk of the node. */
export class SwappedSequences {
  readonly #kv: KvMemory;
  readonly #disk: ParkingDisk | undefined;
  readonly #swapped = new Map<number, SwappedKv | FiledKv>();

  constructor(kv: KvMemory, disk: ParkingDisk | undefined) {
    this.#kv = kv;
    this.#disk = disk;
  }

  get hasDisk(): boolean {
    return this.#disk?.usable ?? false;
  }

  /** @returns bytes; undefined where the place does not take them: they lie where they were */
  out(id: number, blocks: readonly number[], tokens: number, place: SwapPlace): number | undefined {
    const swapped =
      place === 'memory'
        ? swapOutKv(this.#kv, blocks, tokens)
        : this.#disk && fileKv(this.#kv, blocks, tokens, this.#disk);
    if (!swapped) return undefined;
    this.#swapped.set(id, swapped);
    return 'file' in swapped ? swapped.bytes : swapped.rows.length;
  }

  /** @returns whether they are damaged */
  in(id: number, blocks: readonly number[]): boolean {
    const swapped = this.#swapped.get(id)!;
    this.#swapped.delete(id);
    try {
      if ('file' in swapped) unfileKv(this.#kv, blocks, swapped);
      else swapInKv(this.#kv, blocks, swapped);
      return false;
    } catch (error) {
      if (!(error instanceof HpcserveError)) throw error;
      return true;
    }
  }

  forget(id: number): void {
    const swapped = this.#swapped.get(id);
    this.#swapped.delete(id);
    if (swapped && 'file' in swapped) swapped.file.close();
  }

  clear(): void {
    for (const id of [...this.#swapped.keys()]) this.forget(id);
  }
}
