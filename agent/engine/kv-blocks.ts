/**
 * Hands out KV blocks. A sequence's blocks lie side by side for as long as possible, since one extent is
 * attended in place: a new sequence begins in a hole that is large enough for what it may grow to, and
 * others stay out of the room before it until nothing else is free. Full blocks of a prompt are remembered
 * after their sequence ends, and shared by sequences that begin with the same tokens.
 */
import { kv_block_tokens } from './kv-memory.ts';

/** The blocks of one sequence, in token order. */
export interface BlockList {
  readonly blocks: number[];
  /** Blocks that the sequence may come to need in all; others avoid the room for them. */
  wanted: number;
}

export class KvBlocks {
  readonly n_blocks: number;
  /** References per block; 0: free (and perhaps remembered). */
  readonly #references: Int32Array;
  readonly #lists = new Set<BlockList>();
  #free: number;
  /** Full blocks by their content and the prefix that they follow. */
  readonly #prefixes = new Map<string, Prefix>();
  readonly #prefixOfBlock = new Map<number, string>();
  #nextPrefix = 1;

  constructor(n_blocks: number) {
    this.n_blocks = n_blocks;
    this.#references = new Int32Array(n_blocks);
    this.#free = n_blocks;
  }

  get free_blocks(): number {
    return this.#free;
  }

  get used_blocks(): number {
    return this.n_blocks - this.#free;
  }

  /** A list without blocks, for a sequence that may come to need `wanted` of them. */
  open(wanted: number): BlockList {
    const list: BlockList = { blocks: [], wanted };
    this.#lists.add(list);
    return list;
  }

  /** Makes the list at least `count` blocks long, or leaves it as it is and says false. */
  grow(list: BlockList, count: number): boolean {
    const missing = count - list.blocks.length;
    if (missing <= 0) return true;
    if (missing > this.#free) return false;
    for (let index = 0; index < missing; index++) {
      const block = this.#next(list);
      this.#forget(block);
      this.#references[block] = 1;
      this.#free--;
      list.blocks.push(block);
    }
    return true;
  }

  /** Gives all blocks of the list back at once; shared ones stay with those who share them. */
  release(list: BlockList): void {
    this.#lists.delete(list);
    for (const block of list.blocks) {
      const left = --this.#references[block]!;
      if (left === 0) this.#free++;
    }
    list.blocks.length = 0;
  }

  /**
   * Starts the list with remembered blocks of the same tokens. At least one token is left to compute.
   * @returns tokens that need no computing: a multiple of the block size.
   */
  share(list: BlockList, tokens: ArrayLike<number>): number {
    const most = Math.floor((tokens.length - 1) / kv_block_tokens);
    let parent = 0;
    for (let index = 0; index < most; index++) {
      const prefix = this.#prefixes.get(prefixKey(parent, tokens, index));
      if (prefix === undefined) break;
      const { block } = prefix;
      parent = prefix.id;
      if (this.#references[block] === 0) this.#free--;
      this.#references[block]!++;
      list.blocks.push(block);
    }
    return list.blocks.length * kv_block_tokens;
  }

  /** Remembers the content of a list's full blocks: `tokens` whose keys and values have been computed. */
  remember(list: BlockList, tokens: ArrayLike<number>, count: number): void {
    const full = Math.min(Math.floor(count / kv_block_tokens), list.blocks.length);
    let parent = 0;
    for (let index = 0; index < full; index++) {
      const key = prefixKey(parent, tokens, index);
      const block = list.blocks[index]!;
      let prefix = this.#prefixes.get(key);
      if (prefix === undefined) {
        // A block that is remembered behind a prefix since forgotten is remembered anew.
        this.#forget(block);
        prefix = { block, id: this.#nextPrefix++ };
        this.#prefixes.set(key, prefix);
        this.#prefixOfBlock.set(block, key);
      }
      parent = prefix.id;
    }
  }

  /** Throws where references and lists disagree: an integrity check for tests and idle moments. */
  verify(): void {
    const counted = new Int32Array(this.n_blocks);
    for (const { blocks } of this.#lists) for (const block of blocks) counted[block]!++;
    const free = counted.reduce((sum, count) => sum + Number(count === 0), 0);
    if (counted.some((count, block) => count !== this.#references[block]) || free !== this.#free)
      throw new Error('KV blocks: references disagree with the lists of the live sequences');
  }

  /** The block after the list's last where it is free; else the start of the best hole. */
  #next(list: BlockList): number {
    const last = list.blocks.at(-1);
    if (last !== undefined && last + 1 < this.n_blocks && this.#references[last + 1] === 0) return last + 1;
    const wanted = Math.max(1, list.wanted - list.blocks.length);
    return this.#hole(this.#claims(list), wanted) ?? this.#hole(this.#references, wanted)!;
  }

  /** References plus the room before each sequence that it may come to need. */
  #claims(except: BlockList): Int32Array {
    const claims = Int32Array.from(this.#references);
    for (const { blocks, wanted } of this.#lists) {
      const last = blocks.at(-1);
      if (last === undefined || except.blocks === blocks) continue;
      const end = Math.min(this.n_blocks, last + 1 + wanted - blocks.length);
      for (let block = last + 1; block < end; block++) claims[block]!++;
    }
    return claims;
  }

  /** Start of the first hole of the wanted size, else of the largest; undefined where nothing is free. */
  #hole(taken: Int32Array, wanted: number): number | undefined {
    let best: number | undefined;
    let bestSize = 0;
    for (let block = 0; block < this.n_blocks; block++) {
      if (taken[block] !== 0) continue;
      let end = block;
      while (end < this.n_blocks && taken[end] === 0 && end - block < wanted) end++;
      if (end - block > bestSize) {
        best = block;
        bestSize = end - block;
      }
      if (bestSize >= wanted) break;
      block = end;
    }
    return best;
  }

  #forget(block: number): void {
    const key = this.#prefixOfBlock.get(block);
    if (key === undefined) return;
    this.#prefixOfBlock.delete(block);
    this.#prefixes.delete(key);
  }
}

interface Prefix {
  block: number;
  /** Unique for ever: a prefix that is forgotten and computed again is another one. */
  id: number;
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
