/**
 * Seeded random numbers (sfc32 by Chris Doty-Humphrey, public domain; period about 2^127). The only
 * randomness of the solver: the same seed gives the same run on every machine.
 */
export class Random {
  #a = 0x9e3779b9;
  #b = 0x243f6a88;
  #c: number;
  #counter = 1;

  constructor(seed: number) {
    this.#c = seed | 0;
    for (let round = 0; round < 12; round++) this.#next();
  }

  #next(): number {
    const sum = (((this.#a + this.#b) | 0) + this.#counter) | 0;
    this.#counter = (this.#counter + 1) | 0;
    this.#a = this.#b ^ (this.#b >>> 9);
    this.#b = (this.#c + (this.#c << 3)) | 0;
    this.#c = (this.#c << 21) | (this.#c >>> 11);
    this.#c = (this.#c + sum) | 0;
    return sum >>> 0;
  }

  /** Uniform in [0, 1). */
  unit(): number {
    return this.#next() / 2 ** 32;
  }

  /** Uniform integer in [0, bound). */
  below(bound: number): number {
    return Math.floor(this.unit() * bound);
  }

  /** Fisher–Yates, in place; returns the array. */
  shuffle<T extends number[] | Int32Array>(array: T): T {
    for (let last = array.length - 1; last > 0; last--) {
      const other = this.below(last + 1);
      const held = array[last]!;
      array[last] = array[other]!;
      array[other] = held;
    }
    return array;
  }
}
