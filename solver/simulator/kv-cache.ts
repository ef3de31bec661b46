/**
 * Blocks of a paged KV cache. Decoding sequences grow by one token a step, so each takes a new block every
 * `block_tokens` steps, at a phase that stays the same while it decodes: a histogram of phases tells how many
 * blocks any number of steps will take.
 */
export class PagedKvCache {
  readonly block_tokens: number;
  readonly total: number;
  used = 0;
  peak = 0;
  readonly #phases: Int32Array;
  #growing = 0;

  constructor(total: number, block_tokens: number) {
    this.total = total;
    this.block_tokens = block_tokens;
    this.#phases = new Int32Array(block_tokens);
  }

  get free(): number {
    return this.total - this.used;
  }

  blocksOf(tokens: number): number {
    return Math.ceil(tokens / this.block_tokens);
  }

  take(blocks: number): void {
    this.used += blocks;
    if (this.used > this.total) throw new Error(`${this.used} KV blocks in use of ${this.total}`);
    if (this.used > this.peak) this.peak = this.used;
  }

  release(blocks: number): void {
    this.used -= blocks;
  }

  /** A sequence with `context` tokens in the cache starts to decode at step `step`. */
  startGrowing(context: number, step: number): void {
    this.#phases[this.#phase(context, step)]!++;
    this.#growing++;
  }

  stopGrowing(context: number, step: number): void {
    this.#phases[this.#phase(context, step)]!--;
    this.#growing--;
  }

  /** Blocks that `steps` decode steps from step `step` on will take. */
  growth(step: number, steps: number): number {
    const size = this.block_tokens;
    let blocks = Math.floor(steps / size) * this.#growing;
    for (let k = 0; k < steps % size; k++) blocks += this.#phases[(size - ((step + k) % size)) % size]!;
    return blocks;
  }

  /** The most steps, up to `limit`, whose growth fits into the free blocks. */
  stepsThatFit(step: number, limit: number): number {
    if (this.#growing === 0) return limit;
    const size = this.block_tokens;
    let free = this.free;
    const turns = Math.min(Math.floor(limit / size), Math.floor(free / this.#growing));
    free -= turns * this.#growing;
    let steps = turns * size;
    while (steps < limit) {
      const needed = this.#phases[(size - ((step + steps) % size)) % size]!;
      if (needed > free) break;
      free -= needed;
      steps++;
    }
    return steps;
  }

  /** A new block is needed at step s by sequences whose context then fills their blocks: (phase + s) % size = 0. */
  #phase(context: number, step: number): number {
    const size = this.block_tokens;
    return (((context - step) % size) + size) % size;
  }
}
