/**
 * Which blocks hold which tokens: full blocks are found again by their tokens and the prefix before them, for as long
 * as nothing else is written there.
 */
import { kv_block_tokens } from './kv-storage.ts';

interface Prefix {
  block: number;
  /** Unique for ever: a prefix that is forgotten and computed again is another one. */
  id: number;
}

export class KvPrefixes {
  readonly #prefixes = new Map<string, Prefix>();
  readonly #keyOfBlock = new Map<number, string>();
  #nextId = 1;

  has(block: number): boolean {
    return this.#keyOfBlock.has(block);
  }

  /** Blocks that hold the beginning of `tokens`, at most so many. */
  find(tokens: ArrayLike<number>, blocks_max: number): number[] {
    const found: number[] = [];
    let parent = 0;
    while (found.length < blocks_max) {
      const prefix = this.#prefixes.get(prefixKey(parent, tokens, found.length));
      if (prefix === undefined) break;
      found.push(prefix.block);
      parent = prefix.id;
    }
    return found;
  }

  /** Remembers that full blocks hold the beginning of `tokens`, each of them behind those before it. */
  remember(blocks: readonly number[], tokens: ArrayLike<number>, count: number): void {
    let parent = 0;
    for (let index = 0; index < count; index++) {
      const key = prefixKey(parent, tokens, index);
      const block = blocks[index]!;
      let prefix = this.#prefixes.get(key);
      if (prefix === undefined) {
        // A block that is remembered behind a prefix since forgotten is remembered anew.
        this.forget(block);
        prefix = { block, id: this.#nextId++ };
        this.#prefixes.set(key, prefix);
        this.#keyOfBlock.set(block, key);
      }
      parent = prefix.id;
    }
  }

  forget(block: number): void {
    const key = this.#keyOfBlock.get(block);
    if (key === undefined) return;
    this.#keyOfBlock.delete(block);
    this.#prefixes.delete(key);
  }

  /** Throws where the two maps disagree. */
  verify(): void {
    for (const [block, key] of this.#keyOfBlock)
      if (this.#prefixes.get(key)?.block !== block)
        throw new Error(`KV prefixes: block ${block} is not found`);
    if (this.#prefixes.size !== this.#keyOfBlock.size)
      throw new Error('KV prefixes: a prefix is remembered without a block');
  }
}

/** The exact tokens of a block and the prefix before it, so that no two prompts are taken for one another. */
function prefixKey(parent: number, tokens: ArrayLike<number>, index: number): string {
  const start = index * kv_block_tokens;
  let text = `${parent}:`;
  for (let offset = 0; offset < kv_block_tokens; offset++) {
    const token = tokens[start + offset]!;
    text += String.fromCharCode(token & 0xffff, token >>> 16);
  }
  return text;
}
