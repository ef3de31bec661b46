import { fail } from '../inconsistency.ts';
import { Propagator } from '../propagator.ts';
import type { Trail } from '../trail.ts';
import type { Variable } from '../variable.ts';

/**
 * (variables) is one of `tuples`; domain-consistent. The tuples that are still possible are a reversible
 * sparse set (simple tabular reduction: Ullmann; Lecoutre's STR).
 */
export class Table extends Propagator {
  readonly #variables: readonly Variable[];
  readonly #tuples: readonly (readonly number[])[];
  readonly #order: Int32Array;
  readonly #trail: Trail;
  readonly #left: number;

  constructor(trail: Trail, variables: readonly Variable[], tuples: readonly (readonly number[])[]) {
    super();
    for (const { length } of tuples)
      if (length !== variables.length) throw new RangeError('a tuple of another length');
    this.#variables = variables;
    this.#tuples = tuples;
    this.#order = Int32Array.from(tuples, (_, index) => index);
    this.#trail = trail;
    this.#left = trail.cell(tuples.length);
  }

  watch(): void {
    for (const variable of this.#variables) variable.wakeOnChange(this);
  }

  propagate(): void {
    let left = this.#trail.get(this.#left);
    const supported = this.#variables.map(() => new Set<number>());
    for (let at = left - 1; at >= 0; at--) {
      const index = this.#order[at]!;
      const tuple = this.#tuples[index]!;
      if (tuple.every((value, i) => this.#variables[i]!.has(value))) {
        for (let i = 0; i < tuple.length; i++) supported[i]!.add(tuple[i]!);
        continue;
      }
      left--;
      this.#order[at] = this.#order[left]!;
      this.#order[left] = index;
    }
    if (left === 0) fail();
    this.#trail.set(this.#left, left);
    for (let i = 0; i < supported.length; i++) {
      const variable = this.#variables[i]!;
      for (const value of variable.values()) if (!supported[i]!.has(value)) variable.remove(value);
    }
  }
}
