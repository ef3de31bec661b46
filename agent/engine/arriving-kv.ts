import type { MemoryPiece } from '../../native/fabric/memory.ts';
import type { BlockList, KvBlockAllocator } from './kv-block-allocator.ts';
import type { KvMemory } from './kv-memory.ts';
import { type KvRange, kvPieces, kvRowRuns } from './kv-runs.ts';
import { kv_block_tokens } from './kv-storage.ts';

/**
 * Blocks for keys and values that are computed elsewhere and on their way. What has come is remembered as the beginning
 * of a prompt is: whoever continues with these tokens shares its blocks, and has only the rest to compute. The blocks
 * stay until `release`, and are then kept like any other prompt's while nobody needs their memory.
 */
export class ArrivingKv {
  readonly #kv: KvMemory;
  readonly #blocks: KvBlockAllocator;
  readonly #list: BlockList;
  #released = false;

  /** @param scope of the sequence: who asks in another one does not find it */
  constructor(kv: KvMemory, blocks: KvBlockAllocator, scope: string | undefined) {
    this.#kv = kv;
    this.#blocks = blocks;
    this.#list = blocks.open(0, scope);
  }

  /** @returns false where there is no memory for so many tokens now: it has what it had */
  grow(tokens: number): boolean {
    const blocks = Math.ceil(tokens / kv_block_tokens);
    this.#list.wanted = Math.max(this.#list.wanted, blocks);
    return this.#blocks.grow(this.#list, blocks);
  }

  /** Where rows belong in the memory of the pool; undefined: it is in no pool that others can address. */
  places(tokens: KvRange, layers: KvRange): MemoryPiece[] | undefined {
    return kvPieces(this.#kv, this.#list.blocks, tokens, layers);
  }

  /** Writes rows that came to memory of the host: per layer keys, then values, each in the order of tokens. */
  write(tokens: KvRange, layers: KvRange, host: Uint8Array): void {
    this.#kv.writeRuns(kvRowRuns(this.#kv, this.#list.blocks, tokens, layers, host));
  }

  /** The rows of these tokens, from the first on, are there. */
  commit(tokens: ArrayLike<number>): void {
    this.#blocks.remember(this.#list, tokens, tokens.length);
  }

  release(): void {
    if (this.#released) return;
    this.#released = true;
    this.#blocks.release(this.#list);
  }
}
