import type { KvDemand, KvSlabStorage, KvUser } from './kv-storage.ts';

/**
 * Of the budget, what may lie idle once no memory is free any more. Lower: more room for tensors of other models;
 * higher: prompts are found again for longer.
 */
const idle_share = 0.25;

interface Slab {
  committed: boolean;
  /** Blocks with references. */
  live_blocks: number;
  /** When it was last in use, in steps of this object's clock. */
  used_at: number;
}

/**
 * Which slabs of a KV cache have memory, which of them are in use, and which go first when memory is short. Slabs
 * without live blocks are kept for what their blocks still hold, within bounds (Tangram §3.3: delayed release).
 */
export class KvSlabs implements KvUser {
  readonly #storage: KvSlabStorage;
  readonly #slabs: Slab[];
  /** What is forgotten with a slab. */
  readonly #onRelease: (slab: number) => void;
  #budget: number;
  #committed = 0;
  #live = 0;
  #clock = 0;

  constructor(storage: KvSlabStorage, budget: number, onRelease: (slab: number) => void) {
    this.#storage = storage;
    this.#budget = budget;
    this.#onRelease = onRelease;
    this.#slabs = Array.from({ length: storage.slabs }, () => ({
      committed: false,
      live_blocks: 0,
      used_at: 0,
    }));
    storage.attach(this);
  }

  get used_bytes(): number {
    return this.#live * this.#storage.slab_bytes;
  }

  get cached_bytes(): number {
    return (this.#committed - this.#live) * this.#storage.slab_bytes;
  }

  get budget_bytes(): number {
    return this.#inForce * this.#storage.slab_bytes;
  }

  reclaim(bytes: number): void {
    this.#releaseIdle(Math.ceil(bytes / this.#storage.slab_bytes));
  }

  hasMemory(slab: number): boolean {
    return this.#slabs[slab]!.committed;
  }

  /**
   * Slabs in use keep their memory: the budget is at least theirs, and at least one. What lies idle beyond it is given
   * back.
   */
  setBudget(slabs: number): void {
    this.#budget = Math.max(1, slabs);
    this.#releaseIdle(this.#committed - this.#inForce);
  }

  /** A block of it has its first reference. */
  enter(slab: number): void {
    const state = this.#slabs[slab]!;
    if (state.live_blocks++ === 0) this.#live++;
    state.used_at = ++this.#clock;
  }

  /** A block of it has lost its last reference. */
  leave(slab: number): void {
    const state = this.#slabs[slab]!;
    if (--state.live_blocks === 0) this.#live--;
    state.used_at = ++this.#clock;
  }

  /**
   * Sees to memory behind slabs. Where it comes from, in this order: memory that nobody uses; idle slabs beyond a
   * share of the budget; tensors that no instance uses; idle slabs.
   * @param wanted slabs, each once; those that have memory count as done and are not given up
   * @param exempt from the budget: somebody must always go on
   */
  commit(wanted: readonly number[], exempt: boolean): boolean {
    const missing = wanted.filter((slab) => !this.#slabs[slab]!.committed);
    if (missing.length === 0) return true;
    const keep = new Set(wanted);
    const over = this.#committed + missing.length - this.#budget;
    if (over > 0 && this.#releaseIdle(over, keep) < over && !exempt) return false;
    if (this.#take(missing, 'free')) return true;
    const idle = this.#committed - this.#live;
    this.#releaseIdle(idle - Math.floor(idle_share * this.#budget), keep);
    if (this.#take(missing, 'free') || this.#take(missing, 'evict')) return true;
    return this.#releaseIdle(idle, keep) > 0 && this.#take(missing, 'evict');
  }

  verify(liveBlocksOf: (slab: number) => number): void {
    let committed = 0;
    let live = 0;
    this.#slabs.forEach((slab, index) => {
      const blocks = liveBlocksOf(index);
      if (blocks !== slab.live_blocks)
        throw new Error(`KV slab ${index} counts ${slab.live_blocks} live blocks and has ${blocks}`);
      if (blocks > 0 && !slab.committed) throw new Error(`KV slab ${index} is in use and has no memory`);
      committed += Number(slab.committed);
      live += Number(blocks > 0);
    });
    if (committed !== this.#committed || live !== this.#live)
      throw new Error('KV slabs: the sums disagree with the slabs');
  }

  get #inForce(): number {
    return Math.max(this.#budget, this.#live);
  }

  #take(slabs: readonly number[], demand: KvDemand): boolean {
    if (!this.#storage.commit(slabs, demand)) return false;
    for (const slab of slabs) this.#slabs[slab]!.committed = true;
    this.#committed += slabs.length;
    return true;
  }

  /** @returns how many were released: those idle longest */
  #releaseIdle(count: number, keep: ReadonlySet<number> = new Set()): number {
    if (count <= 0) return 0;
    const idle: number[] = [];
    this.#slabs.forEach((slab, index) => {
      if (slab.committed && slab.live_blocks === 0 && !keep.has(index)) idle.push(index);
    });
    idle.sort((a, b) => this.#slabs[a]!.used_at - this.#slabs[b]!.used_at);
    const gone = idle.slice(0, count);
    if (gone.length === 0) return 0;
    for (const slab of gone) {
      this.#slabs[slab]!.committed = false;
      this.#onRelease(slab);
    }
    this.#committed -= gone.length;
    this.#storage.release(gone);
    return gone.length;
  }
}
