import type { Domain } from './domain.ts';
import { fail } from './inconsistency.ts';
import type { Trail } from './trail.ts';

const bits = 32;

/** One bit a value in words of 32, each word a cell of the trail: a removal logs one word. */
export class BitsetDomain implements Domain {
  readonly holes = true;
  readonly #trail: Trail;
  readonly #offset: number;
  readonly #words: Int32Array;
  readonly #min: number;
  readonly #max: number;
  readonly #size: number;

  /** All integers from `min` to `max`. */
  constructor(trail: Trail, min: number, max: number) {
    const count = max - min + 1;
    this.#trail = trail;
    this.#offset = min;
    this.#words = Int32Array.from({ length: Math.ceil(count / bits) }, (_, word) => {
      const left = count - word * bits;
      return trail.cell(left >= bits ? 0xffffffff : 2 ** left - 1);
    });
    this.#min = trail.cell(min);
    this.#max = trail.cell(max);
    this.#size = trail.cell(count);
  }

  get min(): number {
    return this.#trail.get(this.#min);
  }
  get max(): number {
    return this.#trail.get(this.#max);
  }
  get size(): number {
    return this.#trail.get(this.#size);
  }

  has(value: number): boolean {
    const at = value - this.#offset;
    if (value < this.min || value > this.max || !Number.isInteger(value)) return false;
    return ((this.#trail.get(this.#words[Math.floor(at / bits)]!) >>> (at % bits)) & 1) === 1;
  }

  remove(value: number): boolean {
    if (!this.has(value)) return false;
    if (this.size === 1) fail();
    this.#clear(value);
    this.#tighten();
    return true;
  }

  removeBelow(value: number): boolean {
    if (value <= this.min) return false;
    if (value > this.max) fail();
    for (let each = this.min; each < value; each++) if (this.has(each)) this.#clear(each);
    this.#tighten();
    return true;
  }

  removeAbove(value: number): boolean {
    if (value >= this.max) return false;
    if (value < this.min) fail();
    for (let each = this.max; each > value; each--) if (this.has(each)) this.#clear(each);
    this.#tighten();
    return true;
  }

  fix(value: number): boolean {
    if (!this.has(value)) fail();
    const below = this.removeBelow(value);
    return this.removeAbove(value) || below;
  }

  values(): number[] {
    const all: number[] = [];
    for (let value = this.min; value <= this.max; value++) if (this.has(value)) all.push(value);
    return all;
  }

  #clear(value: number): void {
    const at = value - this.#offset;
    const cell = this.#words[Math.floor(at / bits)]!;
    this.#trail.set(cell, (this.#trail.get(cell) & ~(1 << (at % bits))) >>> 0);
    this.#trail.set(this.#size, this.size - 1);
  }

  /** Moves the bounds inwards to values that are there; the set is not empty. */
  #tighten(): void {
    let { min, max } = this;
    while (!this.has(min)) min++;
    while (!this.has(max)) max--;
    this.#trail.set(this.#min, min);
    this.#trail.set(this.#max, max);
  }
}
