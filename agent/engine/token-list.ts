/** The tokens of one sequence, prompt first: an Int32Array that grows. */
export class TokenList {
  #tokens: Int32Array;
  #length: number;

  constructor(prompt: Int32Array) {
    this.#tokens = Int32Array.from(prompt);
    this.#length = prompt.length;
  }

  get length(): number {
    return this.#length;
  }

  push(token: number): void {
    if (this.#length === this.#tokens.length) {
      const larger = new Int32Array(Math.max(64, 2 * this.#length));
      larger.set(this.#tokens);
      this.#tokens = larger;
    }
    this.#tokens[this.#length++] = token;
  }

  at(index: number): number {
    return this.#tokens[index]!;
  }

  /** Shared memory, not a copy: valid until the next push. */
  slice(begin: number, end: number): Int32Array {
    return this.#tokens.subarray(begin, Math.min(end, this.#length));
  }

  all(): Int32Array {
    return this.slice(0, this.#length);
  }
}
