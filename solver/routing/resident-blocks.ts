import { tokenHash_end } from './token-blocks.ts';

/** Blocks that a replica's engine says it holds. What it says is bounded, and only ever decides who is asked. */
export class ResidentBlocks {
  readonly #blocks_max: number;
  readonly #blocks = new Set<number>();
  #block_tokens = 0;
  #told = false;

  /** @param blocks_max Lower: less memory; higher: larger caches are known. */
  constructor(blocks_max: number) {
    this.#blocks_max = blocks_max;
  }

  /** Whether what it knows is what the engine holds, as far as it has been told. */
  get told(): boolean {
    return this.#told;
  }

  get block_tokens(): number {
    return this.#block_tokens;
  }

  get size(): number {
    return this.#blocks.size;
  }

  /** What was told before is void. */
  reset(block_tokens: number): void {
    this.#blocks.clear();
    this.#block_tokens = block_tokens;
    this.#told = true;
  }

  /** Nothing is known any more. */
  end(): void {
    this.#blocks.clear();
    this.#told = false;
  }

  /** @param change a block's name; `tokenHash_end` more where it is gone */
  change(change: number): void {
    if (!this.#told) return;
    if (change >= tokenHash_end) this.#blocks.delete(change - tokenHash_end);
    else if (this.#blocks.size < this.#blocks_max) this.#blocks.add(change);
    else this.end();
  }

  /** Tokens of a prompt that are there, from its beginning. @param hashes of its blocks; so many tokens of it count */
  tokensOf(hashes: Float64Array, tokens_max: number): number {
    const end = Math.min(hashes.length, Math.ceil(tokens_max / this.#block_tokens));
    let count = 0;
    while (count < end && this.#blocks.has(hashes[count]!)) count++;
    return count * this.#block_tokens;
  }
}
