/**
 * The generator of synthetic weights: xoshiro128++ 1.0 (Blackman and Vigna, 2019, prng.di.unimi.it), one
 * stream a tensor row, its state filled by MurmurHash3's 32-bit finalizer from (seed, FNV-1a of the tensor's
 * name, row). Rows do not depend on one another, so workers may compute them in any order and the bytes stay
 * the same. Integer arithmetic only: equal on every machine.
 */

/** FNV-1a, 32 bits, over the UTF-8 bytes of a text. */
export function fnv1a32(text: string): number {
  let hash = 0x811c9dc5;
  for (const byte of Buffer.from(text, 'utf8')) hash = Math.imul(hash ^ byte, 0x01000193);
  return hash >>> 0;
}

/** MurmurHash3's finalizer (fmix32): every input bit changes about half of the output bits. */
function mix32(value: number): number {
  let h = value | 0;
  h = Math.imul(h ^ (h >>> 16), 0x85ebca6b);
  h = Math.imul(h ^ (h >>> 13), 0xc2b2ae35);
  return (h ^ (h >>> 16)) >>> 0;
}

/** A stream of its own for (seed, key, index): 32-bit unsigned integers. */
export class RandomStream {
  #a = 0;
  #b = 0;
  #c = 0;
  #d = 0;

  constructor(seed: number, key: number, index: number) {
    this.restart(seed, key, index);
  }

  restart(seed: number, key: number, index: number): void {
    const start = mix32((mix32(seed) ^ key) + Math.imul(index, 0x9e3779b9));
    const second = mix32(start ^ mix32(index + 0x6a09e667) ^ Math.imul(key, 0x85ebca77));
    this.#a = mix32(start + 0x9e3779b9);
    this.#b = mix32(second + 0x3c6ef372);
    this.#c = mix32(start + 0xdaa66d2b);
    this.#d = mix32(second + 0x78dde6e4) | 1;
  }

  /** The four words, as unsigned integers. */
  get state(): number[] {
    return [this.#a >>> 0, this.#b >>> 0, this.#c >>> 0, this.#d >>> 0];
  }

  next(): number {
    const sum = (this.#a + this.#d) | 0;
    const result = (((sum << 7) | (sum >>> 25) | 0) + this.#a) >>> 0;
    const shifted = this.#b << 9;
    this.#c ^= this.#a;
    this.#d ^= this.#b;
    this.#b ^= this.#c;
    this.#a ^= this.#d;
    this.#c ^= shifted;
    this.#d = (this.#d << 11) | (this.#d >>> 21);
    return result;
  }

  /** An integer in [0, limit), limit ≤ 2^21; the bias of the modulo is below 2^-11. */
  below(limit: number): number {
    return this.next() % limit;
  }

  /**
   * Fills `out` with values of mean `mean` and standard deviation `deviation`, nearly normal: the sum of the
   * four bytes of one draw (Irwin–Hall, n = 4), bounded at ±3.45 deviations. About 3 ns a value.
   */
  fillNormal(out: Float32Array, mean: number, deviation: number): void {
    const scale = deviation / byteSumDeviation;
    const offset = mean - byteSumMean * scale;
    let a = this.#a | 0;
    let b = this.#b | 0;
    let c = this.#c | 0;
    let d = this.#d | 0;
    for (let index = 0; index < out.length; index++) {
      const sum = (a + d) | 0;
      const draw = (((sum << 7) | (sum >>> 25)) + a) | 0;
      const shifted = b << 9;
      c ^= a;
      d ^= b;
      b ^= c;
      a ^= d;
      c ^= shifted;
      d = (d << 11) | (d >>> 21);
      // Pairs of bytes are added within the 32-bit word, then the two halves.
      const pairs = (draw & 0x00ff00ff) + ((draw >>> 8) & 0x00ff00ff);
      out[index] = ((pairs & 0xffff) + (pairs >>> 16)) * scale + offset;
    }
    this.#a = a;
    this.#b = b;
    this.#c = c;
    this.#d = d;
  }
}

const byteSumMean = 4 * 127.5;
/** √(4 · (256² − 1) / 12). */
const byteSumDeviation = Math.sqrt(21845);
