import type { Domain } from './domain.ts';
import { fail } from './inconsistency.ts';
import type { Trail } from './trail.ts';

/**
 * A sparse set (Briggs and Torczon; MiniCP): `dense[0 .. size)` holds the indices of the values left, in no
 * order, `position` where each is. A removal swaps behind the end, so that backtracking restores one
 * number, and a propagator can walk the values left without looking at any that are gone.
 */
export class SparseDomain implements Domain {
  readonly holes = true;
  /** Indices into the sorted values of the start; the first `size` are left. Read only. */
  readonly dense: Int32Array;
  readonly #position: Int32Array;
  readonly #trail: Trail;
  readonly #all: Float64Array;
  readonly #indexOf: ReadonlyMap<number, number> | undefined;
  readonly #size: number;
  readonly #min: number;
  readonly #max: number;

  /** `values`: distinct integers in any order. */
  constructor(trail: Trail, values: Iterable<number>) {
    this.#trail = trail;
    this.#all = Float64Array.from(new Set(values)).sort();
    const count = this.#all.length;
    if (count === 0) throw new RangeError('a domain needs a value');
    const contiguous = this.#all[count - 1]! - this.#all[0]! === count - 1;
    this.#indexOf = contiguous ? undefined : new Map([...this.#all].map((value, index) => [value, index]));
    this.dense = Int32Array.from({ length: count }, (_, index) => index);
    this.#position = this.dense.slice();
    this.#size = trail.cell(count);
    this.#min = trail.cell(0);
    this.#max = trail.cell(count - 1);
  }

  get size(): number {
    return this.#trail.get(this.#size);
  }
  get min(): number {
    return this.#all[this.#trail.get(this.#min)]!;
  }
  get max(): number {
    return this.#all[this.#trail.get(this.#max)]!;
  }

  /** The value an entry of `dense` stands for. */
  valueAt(index: number): number {
    return this.#all[index]!;
  }

  has(value: number): boolean {
    const index = this.#index(value);
    return index >= 0 && this.#left(index);
  }

  remove(value: number): boolean {
    const index = this.#index(value);
    return index >= 0 && this.removeIndex(index);
  }

  /** As `remove`, for an entry of `dense`: when walking `dense`, go from the end to the start. */
  removeIndex(index: number): boolean {
    const { size } = this;
    const at = this.#position[index]!;
    if (at >= size) return false;
    if (size === 1) fail();
    const last = this.dense[size - 1]!;
    this.dense[at] = last;
    this.dense[size - 1] = index;
    this.#position[last] = at;
    this.#position[index] = size - 1;
    this.#trail.set(this.#size, size - 1);
    this.#tighten();
    return true;
  }

  /** Removes every entry whose index is flagged, all in one: for propagators that remove by the hundred. */
  removeFlagged(flags: Uint8Array): boolean {
    const { size } = this;
    let left = size;
    for (let at = size - 1; at >= 0; at--) {
      const index = this.dense[at]!;
      if (flags[index] === 0) continue;
      left--;
      const last = this.dense[left]!;
      this.dense[at] = last;
      this.dense[left] = index;
      this.#position[last] = at;
      this.#position[index] = left;
    }
    if (left === size) return false;
    if (left === 0) fail();
    this.#trail.set(this.#size, left);
    this.#tighten();
    return true;
  }

  removeBelow(value: number): boolean {
    if (value <= this.min) return false;
    if (value > this.max) fail();
    while (this.min < value) this.removeIndex(this.#trail.get(this.#min));
    return true;
  }

  removeAbove(value: number): boolean {
    if (value >= this.max) return false;
    if (value < this.min) fail();
    while (this.max > value) this.removeIndex(this.#trail.get(this.#max));
    return true;
  }

  fix(value: number): boolean {
    const index = this.#index(value);
    if (index < 0 || !this.#left(index)) fail();
    if (this.size === 1) return false;
    const at = this.#position[index]!;
    const first = this.dense[0]!;
    this.dense[0] = index;
    this.dense[at] = first;
    this.#position[index] = 0;
    this.#position[first] = at;
    this.#trail.set(this.#size, 1);
    this.#trail.set(this.#min, index);
    this.#trail.set(this.#max, index);
    return true;
  }

  values(): number[] {
    return [...this.dense.subarray(0, this.size)].sort((a, b) => a - b).map((index) => this.#all[index]!);
  }

  #index(value: number): number {
    if (this.#indexOf) return this.#indexOf.get(value) ?? -1;
    const index = value - this.#all[0]!;
    return index >= 0 && index < this.#all.length && Number.isInteger(index) ? index : -1;
  }

  #left(index: number): boolean {
    return this.#position[index]! < this.size;
  }

  #tighten(): void {
    let min = this.#trail.get(this.#min);
    let max = this.#trail.get(this.#max);
    while (!this.#left(min)) min++;
    while (!this.#left(max)) max--;
    this.#trail.set(this.#min, min);
    this.#trail.set(this.#max, max);
  }
}
