/**
 * Which replica has computed which beginning of a prompt, as far as it can be told from what was sent there: one radix
 * tree for a model. An edge has blocks of prompts, a block the hash of all text up to its end; so two prompts that
 * agree in a block agree in everything before it.
 *
 * ```
 *   root ─┬─ [system prompt] a, b ─┬─ [first conversation] a ─── [its next turn] a
 *         │                        └─ [second conversation] b
 *         └─ [another prompt] b           a, b: holders
 * ```
 *
 * Who holds a node holds all nodes above it. Each holder forgets what an engine forgets: what was used least recently,
 * the end of a prompt before its beginning, as soon as it holds more than its KV cache does. All of it together is
 * bounded in bytes.
 */

/**
 * Bytes that V8 takes for a node with its map of children and its typed array, and for a holding with its entry in the
 * map of holders: measured on Node 24, which takes a quarter more than 20 and 22, and rounded up
 * (`test/solver/routing/prefix-tree.test.ts` compares the sum with the heap).
 */
const node_bytes = 800;
const holding_bytes = 200;
const note_bytes = 400;
const block_bytes = Uint32Array.BYTES_PER_ELEMENT;

interface Node {
  /** Its edge; empty at the root alone. */
  blocks: Uint32Array;
  parent: Node | undefined;
  /** By the first block of their edges. */
  readonly children: Map<number, Node>;
  readonly holdings: Map<Holder, Holding>;
  /** Of the last prompt through it of which something was noted. */
  note: Noted | undefined;
}

/** Tokens of a prompt, by names of their blocks (`token-blocks.ts`). */
export interface PromptNote {
  hashes: Float64Array;
  /** So many tokens, in a text of so many units. */
  tokens: number;
  units: number;
}

interface Noted {
  readonly note: PromptNote;
  /** Nodes that have it. */
  nodes: number;
}

/** How much of a prompt is known, from its beginning. */
export interface PrefixMatch {
  /** Blocks that somebody has, or had noted. */
  blocks: number;
  /** By holder; absent: none. */
  held: Map<string, HeldPrefix>;
  /** Of a prompt that is the same as far as `blocks` says. */
  note: PromptNote | undefined;
}

export interface HeldPrefix {
  blocks: number;
  /** When it was last sent there, on the clock of who uses the tree. */
  used_ms: number;
}

/** That a holder has a node: an entry in its list of what it used, the end of a prompt before its beginning. */
interface Holding {
  readonly node: Node;
  /** The last use, on the clock of who uses the tree. */
  used_ms: number;
  older: Holding | undefined;
  newer: Holding | undefined;
}

interface Holder {
  readonly name: string;
  oldest: Holding | undefined;
  newest: Holding | undefined;
  blocks: number;
  blocks_max: number;
}

/** See above. */
export class PrefixTree {
  readonly #bytes_max: number;
  readonly #root: Node = newNode(new Uint32Array(0), undefined);
  readonly #holders = new Map<string, Holder>();
  #bytes = 0;

  /** @param bytes_max Lower: less memory; higher: more conversations are found again. */
  constructor(bytes_max: number) {
    this.#bytes_max = bytes_max;
  }

  /** What its nodes take, about. */
  get bytes(): number {
    return this.#bytes;
  }

  /** Blocks that a holder is taken to have. */
  blocksOf(holder: string): number {
    return this.#holders.get(holder)?.blocks ?? 0;
  }

  /**
   * A prompt was sent to a holder: from now on it has all of its blocks.
   * @param now_ms on a clock that never goes back
   */
  insert(name: string, blocks: Uint32Array, now_ms: number): void {
    if (blocks.length === 0) return;
    const holder = this.#holderOf(name);
    // From its end to its beginning, so that in the list no node stands behind one above it.
    for (let node: Node | undefined = this.#pathTo(blocks); node?.parent; node = node.parent) {
      let holding = node.holdings.get(holder);
      if (holding) unlink(holder, holding);
      else holding = this.#hold(holder, node);
      holding.used_ms = now_ms;
      linkBehind(holder, holding, holder.newest);
    }
    this.#shrink(holder);
    this.#keepWithin();
  }

  match(blocks: Uint32Array): PrefixMatch {
    const match: PrefixMatch = { blocks: 0, held: new Map(), note: undefined };
    let node = this.#root;
    while (match.blocks < blocks.length) {
      const child = node.children.get(blocks[match.blocks]!);
      if (!child) break;
      const common = commonLength(child.blocks, blocks, match.blocks);
      match.blocks += common;
      match.note = child.note?.note ?? match.note;
      for (const [{ name }, { used_ms }] of child.holdings)
        match.held.set(name, { blocks: match.blocks, used_ms });
      if (common < child.blocks.length) break;
      node = child;
    }
    return match;
  }

  /** What is known of a prompt that was inserted; nodes of it that are gone by now stay so. */
  annotate(blocks: Uint32Array, note: PromptNote): void {
    const noted: Noted = { note, nodes: 0 };
    let node = this.#root;
    for (let at = 0; at < blocks.length; ) {
      const child = node.children.get(blocks[at]!);
      if (!child || commonLength(child.blocks, blocks, at) < child.blocks.length) break;
      at += child.blocks.length;
      this.#setNote(child, noted);
      node = child;
    }
    this.#keepWithin();
  }

  /** @param blocks_max of its KV cache; what is beyond that is forgotten at once */
  setCapacity(name: string, blocks_max: number): void {
    const holder = this.#holderOf(name);
    holder.blocks_max = blocks_max;
    this.#shrink(holder);
  }

  /** It has nothing any more: it was restarted, its cache was cleared, or it is gone. */
  forget(name: string): void {
    const holder = this.#holders.get(name);
    if (!holder) return;
    while (holder.oldest) this.#evict(holder, Number.POSITIVE_INFINITY);
    this.#holders.delete(name);
  }

  /** @throws Error where its parts disagree */
  verify(): void {
    let bytes = 0;
    const notes = new Set<PromptNote>();
    const blocks = new Map<Holder, number>();
    const visit = (node: Node): void => {
      for (const [first, child] of node.children) {
        if (child.parent !== node || child.blocks[0] !== first) throw new Error('a child is not where it is');
        if (child.holdings.size === 0) throw new Error('nobody holds a node');
        bytes += node_bytes + block_bytes * child.blocks.length + holding_bytes * child.holdings.size;
        if (child.note) notes.add(child.note.note);
        for (const [holder, { used_ms }] of child.holdings) {
          const above = node.holdings.get(holder);
          if (node !== this.#root && (!above || above.used_ms < used_ms))
            throw new Error('held without what is above');
          blocks.set(holder, (blocks.get(holder) ?? 0) + child.blocks.length);
        }
        visit(child);
      }
    };
    visit(this.#root);
    for (const { hashes } of notes) bytes += note_bytes + hashes.byteLength;
    if (bytes !== this.#bytes)
      throw new Error(`its nodes take ${bytes} bytes, and ${this.#bytes} are counted`);
    for (const holder of this.#holders.values()) {
      if ((blocks.get(holder) ?? 0) !== holder.blocks) throw new Error('blocks of a holder are miscounted');
      const seen = new Set<Node>();
      for (let holding = holder.oldest; holding; holding = holding.newer) {
        if (holding.node.parent && seen.has(holding.node.parent)) throw new Error('older than what is below');
        seen.add(holding.node);
      }
    }
  }

  #holderOf(name: string): Holder {
    let holder = this.#holders.get(name);
    if (!holder) {
      holder = {
        name,
        oldest: undefined,
        newest: undefined,
        blocks: 0,
        blocks_max: Number.POSITIVE_INFINITY,
      };
      this.#holders.set(name, holder);
    }
    return holder;
  }

  /** The node at whose end the prompt ends; what is missing of the way is made. */
  #pathTo(blocks: Uint32Array): Node {
    let node = this.#root;
    for (let at = 0; at < blocks.length; ) {
      const child = node.children.get(blocks[at]!);
      if (!child) {
        const leaf = newNode(blocks.slice(at), node);
        node.children.set(leaf.blocks[0]!, leaf);
        this.#bytes += node_bytes + block_bytes * leaf.blocks.length;
        return leaf;
      }
      const common = commonLength(child.blocks, blocks, at);
      node = common < child.blocks.length ? this.#split(child, common) : child;
      at += common;
    }
    return node;
  }

  /** @returns a node above this one, with the first `at` of its blocks and the same holders */
  #split(lower: Node, at: number): Node {
    const parent = lower.parent!;
    const upper = newNode(lower.blocks.slice(0, at), parent);
    lower.blocks = lower.blocks.slice(at);
    lower.parent = upper;
    parent.children.set(upper.blocks[0]!, upper);
    upper.children.set(lower.blocks[0]!, lower);
    this.#bytes += node_bytes;
    if (lower.note) this.#setNote(upper, lower.note);
    for (const [holder, below] of lower.holdings) {
      const holding: Holding = { node: upper, used_ms: below.used_ms, older: undefined, newer: undefined };
      upper.holdings.set(holder, holding);
      linkBehind(holder, holding, below);
      this.#bytes += holding_bytes;
    }
    return upper;
  }

  #hold(holder: Holder, node: Node): Holding {
    const holding: Holding = { node, used_ms: 0, older: undefined, newer: undefined };
    node.holdings.set(holder, holding);
    holder.blocks += node.blocks.length;
    this.#bytes += holding_bytes;
    return holding;
  }

  #shrink(holder: Holder): void {
    while (holder.blocks > holder.blocks_max) this.#evict(holder, holder.blocks - holder.blocks_max);
  }

  /** Takes away what a holder used least recently, at most so many blocks: the end of a prompt. */
  #evict(holder: Holder, blocks_max: number): void {
    const { node } = holder.oldest!;
    const { length } = node.blocks;
    if (length > blocks_max) this.#split(node, length - blocks_max);
    const holding = node.holdings.get(holder)!;
    unlink(holder, holding);
    node.holdings.delete(holder);
    holder.blocks -= node.blocks.length;
    this.#bytes -= holding_bytes;
    if (node.holdings.size > 0) return;
    // Whoever held a node below held this one.
    node.parent!.children.delete(node.blocks[0]!);
    this.#bytes -= node_bytes + block_bytes * node.blocks.length;
    this.#setNote(node, undefined);
  }

  #setNote(node: Node, noted: Noted | undefined): void {
    const size = ({ note }: Noted): number => note_bytes + note.hashes.byteLength;
    if (noted && noted.nodes++ === 0) this.#bytes += size(noted);
    if (node.note && --node.note.nodes === 0) this.#bytes -= size(node.note);
    node.note = noted;
  }

  #keepWithin(): void {
    while (this.#bytes > this.#bytes_max) this.#evict(this.#leastRecent()!, Number.POSITIVE_INFINITY);
  }

  #leastRecent(): Holder | undefined {
    let least: Holder | undefined;
    for (const holder of this.#holders.values())
      if (holder.oldest && (!least?.oldest || holder.oldest.used_ms < least.oldest.used_ms)) least = holder;
    return least;
  }
}

function newNode(blocks: Uint32Array, parent: Node | undefined): Node {
  return { blocks, parent, children: new Map(), holdings: new Map(), note: undefined };
}

function commonLength(edge: Uint32Array, blocks: Uint32Array, at: number): number {
  const end = Math.min(edge.length, blocks.length - at);
  let length = 0;
  while (length < end && edge[length] === blocks[at + length]) length++;
  return length;
}

function unlink(holder: Holder, holding: Holding): void {
  const { older, newer } = holding;
  if (older) older.newer = newer;
  else holder.oldest = newer;
  if (newer) newer.older = older;
  else holder.newest = older;
}

/** @param older the one that it stands behind; absent: it is the oldest */
function linkBehind(holder: Holder, holding: Holding, older: Holding | undefined): void {
  const newer = older ? older.newer : holder.oldest;
  holding.older = older;
  holding.newer = newer;
  if (older) older.newer = holding;
  else holder.oldest = holding;
  if (newer) newer.older = holding;
  else holder.newest = holding;
}
