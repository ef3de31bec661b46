import { HpcserveError } from '../../spec/errors/error.ts';
import type { KvMemory } from '../engine/kv-memory.ts';
import { type SwappedKv, swapInKv, swapOutKv } from '../engine/swapped-kv.ts';
import type { KvCommand } from './batch-meta.ts';

/** Does with the KV of one stage what the coordinator says, and has what was swapped out of it. */
export class StageKv {
  readonly #kv: KvMemory;
  readonly #swapped = new Map<number, SwappedKv>();

  constructor(kv: KvMemory) {
    this.#kv = kv;
  }

  /** Bytes of host memory that a sequence takes that was swapped out. */
  swapped_bytes(id: number): number {
    return this.#swapped.get(id)?.rows.length ?? 0;
  }

  /** @returns the sequence whose bytes had changed in host memory; undefined where none had */
  run(command: KvCommand): number | undefined {
    switch (command.do) {
      case 'copy':
        this.#kv.copyRows(command.from_block, command.to_block, command.rows);
        return undefined;
      case 'swap_out':
        this.#swapped.set(command.id, swapOutKv(this.#kv, Array.from(command.blocks), command.tokens));
        return undefined;
      case 'swap_in':
        return this.#swapIn(command.id, Array.from(command.blocks));
      case 'forget':
        this.#swapped.delete(command.id);
        return undefined;
    }
  }

  clear(): void {
    this.#swapped.clear();
  }

  #swapIn(id: number, blocks: number[]): number | undefined {
    const swapped = this.#swapped.get(id);
    this.#swapped.delete(id);
    try {
      if (swapped) {
        swapInKv(this.#kv, blocks, swapped);
        return undefined;
      }
    } catch (error) {
      if (!(error instanceof HpcserveError)) throw error;
    }
    // The sequence is begun anew after this batch, in which it is computed still: what lay in its blocks may be no
    // numbers, and would end the pipeline for all.
    this.#kv.clearBlocks(blocks);
    return id;
  }
}
