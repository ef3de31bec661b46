import type { Domain } from './domain.ts';
import { fail } from './inconsistency.ts';
import type { Trail } from './trail.ts';

/** Two bounds and nothing between them: for ranges too wide to hold value by value. */
export class IntervalDomain implements Domain {
  readonly holes = false;
  readonly #trail: Trail;
  readonly #min: number;
  readonly #max: number;

  constructor(trail: Trail, min: number, max: number) {
    this.#trail = trail;
    this.#min = trail.cell(min);
    this.#max = trail.cell(max);
  }

  get min(): number {
    return this.#trail.get(this.#min);
  }
  get max(): number {
    return this.#trail.get(this.#max);
  }
  get size(): number {
    return this.max - this.min + 1;
  }

  has(value: number): boolean {
    return value >= this.min && value <= this.max && Number.isInteger(value);
  }

  /** @throws RangeError for a value between the bounds: an interval has no holes. */
  remove(value: number): boolean {
    if (!this.has(value)) return false;
    if (value === this.min) return this.removeBelow(value + 1);
    if (value === this.max) return this.removeAbove(value - 1);
    throw new RangeError('an interval domain has no holes');
  }

  removeBelow(value: number): boolean {
    if (value <= this.min) return false;
    if (value > this.max) fail();
    this.#trail.set(this.#min, value);
    return true;
  }

  removeAbove(value: number): boolean {
    if (value >= this.max) return false;
    if (value < this.min) fail();
    this.#trail.set(this.#max, value);
    return true;
  }

  fix(value: number): boolean {
    if (!this.has(value)) fail();
    const below = this.removeBelow(value);
    return this.removeAbove(value) || below;
  }

  values(): number[] {
    return Array.from({ length: this.size }, (_, index) => this.min + index);
  }
}
