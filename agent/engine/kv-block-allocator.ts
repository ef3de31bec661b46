import { KvPrefixes, type PrefixId } from './kv-prefixes.ts';
import { KvSlabs } from './kv-slabs.ts';
import { type KvSlabStorage, kv_block_tokens } from './kv-storage.ts';

/** The blocks of one sequence, in token order. */
export interface BlockList {
  readonly blocks: number[];
  /** Blocks that the sequence may come to need in all; others avoid the room for them. */
  wanted: number;
  /** Whose remembered blocks it may begin with, and who may begin with its own. */
  readonly scope: string;
  /** A reference to a block whose first rows are to be copied to the block at `index`, where there is one by then. */
  source?: { block: number; rows: number; index: number };
  /** Full blocks that were remembered, and the id of the prefix that they are. */
  remembered?: { blocks: number; prefix: PrefixId };
}

/** Copies the first rows of a block to another one. */
type CopyRows = (from_block: number, to_block: number, rows: number) => void;

/**
 * Hands out KV blocks. A sequence's blocks lie side by side for as long as possible, since one extent is
 * attended in place: a new sequence begins in a hole that is large enough for what it may grow to, and
 * others stay out of the room before it until nothing else is free. Blocks of a prompt are remembered after their
 * sequence ends, and shared by sequences that begin with the same tokens: full ones as they are, and of the block after
 * them a copy of the rows that are the same, since the sequence goes on writing there (copy on write).
 *
 * There are more blocks than memory for them: blocks are addresses, and memory comes behind them by slabs.
 */
export class KvBlockAllocator {
  /** Those without memory included. */
  readonly n_blocks: number;
  readonly #slab_blocks: number;
  /** References per block; 0: free (and perhaps remembered). */
  readonly #references: Int32Array;
  readonly #lists = new Set<BlockList>();
  readonly #prefixes = new KvPrefixes();
  readonly #slabs: KvSlabs;
  readonly #storage: KvSlabStorage;
  readonly #copyRows: CopyRows;
  #used = 0;

  /** @param budget_blocks blocks that may have memory at once; slabs are rounded up */
  constructor(storage: KvSlabStorage, budget_blocks: number, copyRows: CopyRows) {
    this.#copyRows = copyRows;
    this.#storage = storage;
    this.#slab_blocks = storage.slab_rows / kv_block_tokens;
    this.n_blocks = storage.slabs * this.#slab_blocks;
    this.#references = new Int32Array(this.n_blocks);
    this.#slabs = new KvSlabs(storage, this.#slabsFor(budget_blocks), (slab) => {
      const first = slab * this.#slab_blocks;
      for (let block = first; block < first + this.#slab_blocks; block++) this.#prefixes.forget(block);
    });
  }

  /** Blocks of live sequences. */
  get used_blocks(): number {
    return this.#used;
  }

  /** Memory of slabs that live sequences use. */
  get used_bytes(): number {
    return this.#slabs.used_bytes;
  }

  /** Memory that no sequence uses, kept for what it still holds. */
  get cached_bytes(): number {
    return this.#slabs.cached_bytes;
  }

  get budget_bytes(): number {
    return this.#slabs.budget_bytes;
  }

  /** @returns bytes that are in force: at least those of live sequences, in whole slabs */
  setBudget(bytes: number): number {
    this.#slabs.setBudget(Math.floor(bytes / this.#storage.slab_bytes));
    return this.budget_bytes;
  }

  bytesOf({ blocks }: BlockList): number {
    return blocks.length * this.#block_bytes;
  }

  /** What the list lacks to be `count` blocks long. */
  missing_bytes({ blocks }: BlockList, count: number): number {
    return Math.max(0, count - blocks.length) * this.#block_bytes;
  }

  /** Whether a list of so many blocks could ever have memory, if all others gave theirs. */
  couldHold(count: number): boolean {
    return this.#storage.couldCommit(this.#slabsFor(count));
  }

  /** Gives up all that is only kept for prompts that begin alike. */
  forgetIdle(): void {
    this.#slabs.reclaim(Number.POSITIVE_INFINITY);
  }

  /**
   * A list without blocks, for a sequence that may come to need `wanted` of them.
   * @param scope of others' blocks it finds those of this scope alone
   */
  open(wanted: number, scope = ''): BlockList {
    const list: BlockList = { blocks: [], wanted, scope };
    this.#lists.add(list);
    return list;
  }

  /**
   * Makes the list at least `count` blocks long, or leaves it as it is and says false.
   * @param exempt from the budget: the sequence that has been there longest always goes on
   */
  grow(list: BlockList, count: number, exempt = false): boolean {
    const missing = count - list.blocks.length;
    if (missing <= 0) return true;
    if (this.#extend(list, missing, exempt) || this.#scatter(list, missing)) return true;
    // Memory that is only held to be copied must not keep anybody waiting.
    if (!list.source) return false;
    this.#dropSource(list);
    return this.#extend(list, missing, exempt) || this.#scatter(list, missing);
  }

  /** Gives all blocks of the list back at once; shared ones stay with those who share them. */
  release(list: BlockList): void {
    this.#lists.delete(list);
    this.#dropSource(list);
    for (const block of list.blocks) this.#dropReference(block);
    list.blocks.length = 0;
  }

  /** The same blocks once more: they stay what they are until both lists are released. */
  hold({ blocks, scope }: BlockList): BlockList {
    const held = this.open(blocks.length, scope);
    for (const block of blocks) {
      this.#addReference(block);
      held.blocks.push(block);
    }
    return held;
  }

  /**
   * Starts the list with remembered blocks of the same tokens. At least one token is left to compute.
   * @returns tokens that need no computing; `copyBeginning` may add to them
   */
  share(list: BlockList, tokens: ArrayLike<number>): number {
    const most = Math.floor((tokens.length - 1) / kv_block_tokens);
    const { blocks, prefix } = this.#prefixes.find(list.scope, tokens, most);
    for (const block of blocks) {
      this.#addReference(block);
      list.blocks.push(block);
    }
    const shared = blocks.length * kv_block_tokens;
    const rows_max = Math.min(tokens.length - 1 - shared, kv_block_tokens - 1);
    const beginning = this.#prefixes.findBeginning(prefix, tokens, shared, rows_max);
    if (!beginning) return shared;
    const { block, rows, whole } = beginning;
    const free = this.#references[block] === 0;
    this.#addReference(block);
    // Nobody else has it, and it lies where the list goes on: nothing needs to be copied.
    if (free && whole && block === (list.blocks.at(-1) ?? Number.NaN) + 1) {
      list.blocks.push(block);
      return shared + rows;
    }
    list.source = { block, rows, index: blocks.length };
    return shared;
  }

  /**
   * Copies what the list's first block of its own has in common with another one. After `share` and `grow`.
   * @returns tokens that need no computing beyond those of `share`
   */
  copyBeginning(list: BlockList): number {
    if (!list.source) return 0;
    const { block, rows, index } = list.source;
    this.#copyRows(block, list.blocks[index]!, rows);
    this.#dropSource(list);
    return rows;
  }

  /**
   * Remembers the content of a list's blocks: the first `count` of `tokens`, whose keys and values have been computed.
   */
  remember(list: BlockList, tokens: ArrayLike<number>, count: number): void {
    const full = Math.min(Math.floor(count / kv_block_tokens), list.blocks.length);
    if (list.remembered?.blocks !== full)
      list.remembered = {
        blocks: full,
        prefix: this.#prefixes.remember(list.scope, list.blocks, tokens, full),
      };
    const rows = count - full * kv_block_tokens;
    const block = list.blocks[full];
    if (rows === 0 || block === undefined) return;
    this.#prefixes.rememberBeginning(block, list.remembered.prefix, tokens, full * kv_block_tokens, rows);
  }

  /** Rows of each block that is remembered. */
  rememberedRows(): Map<number, number> {
    return this.#prefixes.rows();
  }

  /** Of each block so many rows are left: what was remembered beyond them is forgotten. */
  keepRows(rowsOf: (block: number) => number): void {
    for (const [block, rows] of this.#prefixes.rows()) if (rowsOf(block) < rows) this.#prefixes.forget(block);
    for (const list of this.#lists) delete list.remembered;
  }

  /** Throws where references, lists and slabs disagree: an integrity check for tests and idle moments. */
  verify(): void {
    const counted = new Int32Array(this.n_blocks);
    for (const { blocks, source } of this.#lists) {
      for (const block of blocks) counted[block]!++;
      if (source) counted[source.block]!++;
    }
    const used = counted.reduce((sum, count) => sum + Number(count > 0), 0);
    if (counted.some((count, block) => count !== this.#references[block]) || used !== this.#used)
      throw new Error('KV blocks: references disagree with the lists of the live sequences');
    this.#prefixes.verify();
    this.#slabs.verify((slab) => {
      const first = slab * this.#slab_blocks;
      return counted
        .subarray(first, first + this.#slab_blocks)
        .reduce((sum, count) => sum + Number(count > 0), 0);
    });
  }

  /** Another one where a pipeline has another stage here. */
  get #block_bytes(): number {
    return this.#storage.slab_bytes / this.#slab_blocks;
  }

  #slabsFor(blocks: number): number {
    return Math.ceil(blocks / this.#slab_blocks);
  }

  #slabOf(block: number): number {
    return Math.floor(block / this.#slab_blocks);
  }

  #addReference(block: number): void {
    if (this.#references[block]!++ > 0) return;
    this.#used++;
    this.#slabs.enter(this.#slabOf(block));
  }

  #dropSource(list: BlockList): void {
    if (list.source) this.#dropReference(list.source.block);
    delete list.source;
  }

  #dropReference(block: number): void {
    if (--this.#references[block]! > 0) return;
    this.#used--;
    this.#slabs.leave(this.#slabOf(block));
  }

  /** Blocks behind the list's last, or a new hole; memory is seen to for all of them at once. */
  #extend(list: BlockList, missing: number, exempt: boolean): boolean {
    const from = list.blocks.length;
    for (let index = 0; index < missing; index++) {
      const block = this.#next(list);
      if (block === undefined) break;
      // Taken at once, so that the next one is another; it counts once it has memory.
      this.#references[block] = 1;
      list.blocks.push(block);
    }
    const taken = list.blocks.slice(from);
    for (const block of taken) this.#references[block] = 0;
    const slabs = [...new Set(taken.map((block) => this.#slabOf(block)))];
    if (taken.length < missing || !this.#slabs.commit(slabs, exempt)) {
      list.blocks.length = from;
      return false;
    }
    this.#take(taken);
    return true;
  }

  /** Any free blocks that have memory: they are gathered before they are attended, but the sequence goes on. */
  #scatter(list: BlockList, missing: number): boolean {
    const found: number[] = [];
    for (const remembered of [false, true])
      for (let block = 0; block < this.n_blocks && found.length < missing; block++) {
        if (this.#references[block] !== 0 || this.#prefixes.has(block) !== remembered) continue;
        if (this.#slabs.hasMemory(this.#slabOf(block))) found.push(block);
      }
    if (found.length < missing) return false;
    list.blocks.push(...found);
    this.#take(found);
    return true;
  }

  #take(blocks: readonly number[]): void {
    for (const block of blocks) {
      this.#prefixes.forget(block);
      this.#addReference(block);
    }
  }

  /** The block after the list's last where it is free; else the start of the best hole. */
  #next(list: BlockList): number | undefined {
    const last = list.blocks.at(-1);
    if (last !== undefined && last + 1 < this.n_blocks && this.#references[last + 1] === 0) return last + 1;
    const wanted = Math.max(1, list.wanted - list.blocks.length);
    const claims = this.#claims(list);
    const fresh = this.#hole((block) => claims[block] !== 0 || this.#prefixes.has(block), wanted);
    if (fresh?.size === wanted) return fresh.start;
    const hole = this.#hole((block) => claims[block] !== 0, wanted);
    return (hole ?? this.#hole((block) => this.#references[block] !== 0, wanted))?.start;
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

  /** The first hole of the wanted size, else the largest; undefined where nothing is free. */
  #hole(isTaken: (block: number) => boolean, wanted: number): { start: number; size: number } | undefined {
    let best: { start: number; size: number } | undefined;
    for (let block = 0; block < this.n_blocks; block++) {
      if (isTaken(block)) continue;
      const start = block;
      while (block < this.n_blocks && !isTaken(block) && block - start < wanted) block++;
      const size = block - start;
      if (!best || size > best.size) best = { start, size };
      if (size >= wanted) break;
    }
    return best;
  }
}
