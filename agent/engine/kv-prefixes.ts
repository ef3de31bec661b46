import { kv_block_tokens } from './kv-storage.ts';

/**
 * Unique for ever: a prefix that is forgotten and computed again is another one. A text: no prefix, in a scope of that
 * name.
 */
export type PrefixId = number | string;

interface Prefix {
  block: number;
  id: PrefixId;
}

interface Content {
  /** Of the prefix before it. */
  parent: PrefixId;
  /** Shape [kv_block_tokens], of which so many are there. */
  tokens: Int32Array;
  filled: number;
  /** Set where it is full: its key in the prefixes. */
  key?: string;
}

/** A block whose first rows are those of a prompt. */
interface Beginning {
  block: number;
  rows: number;
  /** It holds nothing else that could be found. */
  whole: boolean;
}

/** Blocks that begin with the same token behind the same prefix and are compared. Higher: longer searches. */
const compared_max = 32;

/**
 * Which blocks hold which tokens, for as long as nothing else is written there: full blocks are found again by their
 * tokens and the prefix before them, and the beginning of any block by the tokens that it has in common with a prompt.
 * Prefixes begin in a scope, and are found in that alone: who asks in another one learns nothing of them, by time
 * neither.
 */
export class KvPrefixes {
  readonly #prefixes = new Map<string, Prefix>();
  readonly #contents = new Map<number, Content>();
  /** Blocks by the prefix before them and their first token. */
  readonly #alike = new Map<string, Set<number>>();
  #nextId = 1;

  has(block: number): boolean {
    return this.#contents.has(block);
  }

  /**
   * Blocks that hold the beginning of `tokens`, at most so many.
   * @returns them, and the id of the prefix that they are
   */
  find(scope: string, tokens: ArrayLike<number>, blocks_max: number): { blocks: number[]; prefix: PrefixId } {
    const blocks: number[] = [];
    let prefix: PrefixId = scope;
    while (blocks.length < blocks_max) {
      const next = this.#prefixes.get(prefixKey(prefix, tokens, kv_block_tokens * blocks.length));
      if (next === undefined) break;
      blocks.push(next.block);
      prefix = next.id;
    }
    return { blocks, prefix };
  }

  /** Behind a prefix, the block that has most of the tokens from `start` on at its beginning, at most so many. */
  findBeginning(
    prefix: PrefixId,
    tokens: ArrayLike<number>,
    start: number,
    rows_max: number,
  ): Beginning | undefined {
    let best: Beginning | undefined;
    let compared = 0;
    for (const block of this.#alike.get(alikeKey(prefix, tokens[start]!)) ?? []) {
      const { tokens: own, filled, key } = this.#contents.get(block)!;
      const most = Math.min(filled, rows_max);
      let rows = 0;
      while (rows < most && own[rows] === tokens[start + rows]) rows++;
      if (rows > (best?.rows ?? 0)) best = { block, rows, whole: key === undefined && rows === filled };
      if (best?.rows === rows_max || ++compared === compared_max) break;
    }
    return best;
  }

  /**
   * Remembers that full blocks hold the beginning of `tokens`, each of them behind those before it.
   * @returns the id of the prefix that all of them are
   */
  remember(scope: string, blocks: readonly number[], tokens: ArrayLike<number>, count: number): PrefixId {
    let parent: PrefixId = scope;
    for (let index = 0; index < count; index++) {
      const start = kv_block_tokens * index;
      const key = prefixKey(parent, tokens, start);
      const block = blocks[index]!;
      let prefix = this.#prefixes.get(key);
      if (prefix === undefined) {
        // A block that is remembered behind a prefix since forgotten is remembered anew.
        this.forget(block);
        prefix = { block, id: this.#nextId++ };
        this.#prefixes.set(key, prefix);
        this.#hold(block, parent, tokens, start, kv_block_tokens).key = key;
      } else if (prefix.block !== block) this.forget(block);
      parent = prefix.id;
    }
    return parent;
  }

  /**
   * Remembers that a block behind a prefix begins with so many of the tokens from `start` on, fewer than it has room
   * for.
   */
  rememberBeginning(
    block: number,
    parent: PrefixId,
    tokens: ArrayLike<number>,
    start: number,
    rows: number,
  ): void {
    const known = this.#contents.get(block);
    // The tokens of a live sequence only grow in number.
    if (known && known.parent === parent && known.key === undefined && known.filled <= rows) {
      for (; known.filled < rows; known.filled++) known.tokens[known.filled] = tokens[start + known.filled]!;
      return;
    }
    this.forget(block);
    this.#hold(block, parent, tokens, start, rows);
  }

  /** Of each block that holds something, how many rows. */
  rows(): Map<number, number> {
    return new Map([...this.#contents].map(([block, { filled }]) => [block, filled]));
  }

  forget(block: number): void {
    const content = this.#contents.get(block);
    if (content === undefined) return;
    this.#contents.delete(block);
    if (content.key !== undefined) this.#prefixes.delete(content.key);
    const alike = alikeKey(content.parent, content.tokens[0]!);
    const blocks = this.#alike.get(alike)!;
    blocks.delete(block);
    if (blocks.size === 0) this.#alike.delete(alike);
  }

  /** Throws where the maps disagree. */
  verify(): void {
    let full = 0;
    for (const [block, { parent, tokens, filled, key }] of this.#contents) {
      if (key !== undefined) full++;
      if (key !== undefined && this.#prefixes.get(key)?.block !== block)
        throw new Error(`KV prefixes: block ${block} is not found`);
      if (filled < 1 || (filled === kv_block_tokens) !== (key !== undefined))
        throw new Error(`KV prefixes: block ${block} says that it holds ${filled} tokens`);
      if (!this.#alike.get(alikeKey(parent, tokens[0]!))?.has(block))
        throw new Error(`KV prefixes: the beginning of block ${block} is not found`);
    }
    if (this.#prefixes.size !== full) throw new Error('KV prefixes: a prefix is remembered without a block');
    let alike = 0;
    for (const { size } of this.#alike.values()) alike += size;
    if (alike !== this.#contents.size)
      throw new Error('KV prefixes: a beginning is remembered without a block');
  }

  #hold(block: number, parent: PrefixId, tokens: ArrayLike<number>, start: number, filled: number): Content {
    const own = new Int32Array(kv_block_tokens);
    for (let row = 0; row < filled; row++) own[row] = tokens[start + row]!;
    const content: Content = { parent, tokens: own, filled };
    this.#contents.set(block, content);
    const alike = alikeKey(parent, own[0]!);
    const blocks = this.#alike.get(alike);
    if (blocks) blocks.add(block);
    else this.#alike.set(alike, new Set([block]));
    return content;
  }
}

function alikeKey(parent: PrefixId, token: number): string {
  return `${nameOf(parent)}:${token}`;
}

/** That no scope's name is taken for a number, nor for one with a token behind it. */
function nameOf(id: PrefixId): string {
  return typeof id === 'number' ? String(id) : JSON.stringify(id);
}

/** The exact tokens of a block and the prefix before it, so that no two prompts are taken for one another. */
function prefixKey(parent: PrefixId, tokens: ArrayLike<number>, start: number): string {
  let text = `${nameOf(parent)}:`;
  for (let offset = 0; offset < kv_block_tokens; offset++) {
    const token = tokens[start + offset]!;
    text += String.fromCharCode(token & 0xffff, token >>> 16);
  }
  return text;
}
