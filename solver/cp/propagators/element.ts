import { Propagator } from '../propagator.ts';
import type { Variable } from '../variable.ts';

/**
 * value = table[index]. Domain-consistent on both where `value` has a domain with holes; an interval
 * `value` is kept bounds-consistent.
 */
export class Element extends Propagator {
  readonly #table: readonly number[];
  readonly #index: Variable;
  readonly #value: Variable;

  constructor(table: readonly number[], index: Variable, value: Variable) {
    super();
    this.#table = table;
    this.#index = index;
    this.#value = value;
  }

  watch(): void {
    this.#index.wakeOnChange(this);
    this.#value.wakeOnChange(this);
  }

  propagate(): void {
    const supported = new Set<number>();
    let min = Number.POSITIVE_INFINITY;
    let max = Number.NEGATIVE_INFINITY;
    for (const index of this.#index.values()) {
      const value = this.#table[index];
      if (value === undefined || !this.#value.has(value)) {
        this.#index.remove(index);
        continue;
      }
      supported.add(value);
      min = Math.min(min, value);
      max = Math.max(max, value);
    }
    this.#value.removeBelow(min);
    this.#value.removeAbove(max);
    if (!this.#value.domain.holes) return;
    for (const value of this.#value.values()) if (!supported.has(value)) this.#value.remove(value);
  }
}
