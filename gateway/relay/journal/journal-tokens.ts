import type { JournalMemory } from './journal-memory.ts';

const first_tokens = 128;

/** Token ids that grow in place, four bytes each, accounted for in the journals' memory. */
export class JournalTokens {
  readonly #memory: JournalMemory;
  #ids: Int32Array = new Int32Array(0);
  /** Tokens pushed, also where they could not be kept. */
  length = 0;

  constructor(memory: JournalMemory) {
    this.#memory = memory;
  }

  /** False where it cannot be kept; the list is of no use any more then, but for its length. */
  push(token: number): boolean {
    if (this.length === this.#ids.length && !this.#grow()) {
      this.length++;
      return false;
    }
    if (this.length < this.#ids.length) this.#ids[this.length] = token;
    this.length++;
    return this.length <= this.#ids.length;
  }

  /** Forgets all behind the first so many. */
  truncate(length: number): void {
    this.length = Math.min(this.length, length);
  }

  toArray(): number[] {
    return Array.from(this.#ids.subarray(0, this.length));
  }

  release(): void {
    this.#memory.give(this.#ids.byteLength);
    this.#ids = new Int32Array(0);
  }

  #grow(): boolean {
    const more = new Int32Array(Math.max(first_tokens, this.#ids.length * 2));
    if (!this.#memory.take(more.byteLength - this.#ids.byteLength)) return false;
    more.set(this.#ids);
    this.#ids = more;
    return true;
  }
}
