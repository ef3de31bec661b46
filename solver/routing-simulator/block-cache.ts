/** A replica's KV cache in blocks: those that running sequences need, and those of earlier ones. */
export class BlockCache {
  readonly #blocks_max: number;
  /** How many running sequences need a block. */
  readonly #users = new Map<number, number>();
  /** Blocks that nobody needs, the next to be given up first. */
  readonly #idle = new Map<number, true>();
  /** Blocks without a name: of answers, and ends of prompts. */
  #unnamed = 0;

  constructor(blocks_max: number) {
    this.#blocks_max = blocks_max;
  }

  /** Blocks of a prompt that are there, from its beginning. */
  hits(blocks: Uint32Array): number {
    let count = 0;
    while (count < blocks.length && (this.#users.has(blocks[count]!) || this.#idle.has(blocks[count]!)))
      count++;
    return count;
  }

  /** @returns whether there is room for it: its blocks and so many without a name */
  take(blocks: Uint32Array, unnamed: number): boolean {
    const fresh = blocks.reduce((sum, id) => sum + (this.#users.has(id) ? 0 : 1), 0) + unnamed;
    if (this.#users.size + this.#unnamed + fresh > this.#blocks_max) return false;
    for (const id of blocks) {
      this.#idle.delete(id);
      this.#users.set(id, (this.#users.get(id) ?? 0) + 1);
    }
    this.#unnamed += unnamed;
    this.#giveUp();
    return true;
  }

  /** A sequence has ended. @param answered blocks that its answer has made full and that may be found again */
  leave(blocks: Uint32Array, unnamed: number, answered: Uint32Array): void {
    this.#unnamed -= unnamed;
    // As vLLM does: the end of a sequence is given up before its beginning.
    for (let at = answered.length - 1; at >= 0; at--) this.#idle.set(answered[at]!, true);
    for (let at = blocks.length - 1; at >= 0; at--) {
      const id = blocks[at]!;
      const users = this.#users.get(id)! - 1;
      if (users > 0) this.#users.set(id, users);
      else {
        this.#users.delete(id);
        this.#idle.set(id, true);
      }
    }
    this.#giveUp();
  }

  #giveUp(): void {
    let excess = this.#users.size + this.#unnamed + this.#idle.size - this.#blocks_max;
    for (const id of this.#idle.keys()) {
      if (excess-- <= 0) return;
      this.#idle.delete(id);
    }
  }
}
