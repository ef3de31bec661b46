import { fail } from '../inconsistency.ts';
import { Propagator } from '../propagator.ts';
import type { Variable } from '../variable.ts';

/** Σ coefficients[i]·variables[i] ≤ bound, bounds-consistent. */
export class LinearAtMost extends Propagator {
  readonly #coefficients: readonly number[];
  readonly #variables: readonly Variable[];
  readonly #bound: number;

  constructor(coefficients: readonly number[], variables: readonly Variable[], bound: number) {
    super();
    if (coefficients.length !== variables.length) throw new RangeError('one coefficient a variable');
    this.#coefficients = coefficients;
    this.#variables = variables;
    this.#bound = bound;
  }

  watch(): void {
    for (const variable of this.#variables) variable.wakeOnBounds(this);
  }

  propagate(): void {
    let slack = this.#bound;
    for (let i = 0; i < this.#variables.length; i++) slack -= this.#least(i);
    if (slack < 0) fail();
    for (let i = 0; i < this.#variables.length; i++) {
      const coefficient = this.#coefficients[i]!;
      const variable = this.#variables[i]!;
      if (coefficient > 0) variable.removeAbove(variable.min + Math.floor(slack / coefficient));
      else if (coefficient < 0) variable.removeBelow(variable.max - Math.floor(slack / -coefficient));
    }
  }

  #least(i: number): number {
    const coefficient = this.#coefficients[i]!;
    const variable = this.#variables[i]!;
    return coefficient > 0 ? coefficient * variable.min : coefficient * variable.max;
  }
}

/** Σ coefficients[i]·variables[i] = total: the two inequalities. */
export function linearEquals(
  coefficients: readonly number[],
  variables: readonly Variable[],
  total: number,
): LinearAtMost[] {
  return [
    new LinearAtMost(coefficients, variables, total),
    new LinearAtMost(
      coefficients.map((coefficient) => -coefficient),
      variables,
      -total,
    ),
  ];
}

/** Σ variables = total. */
export function sum(variables: readonly Variable[], total: Variable): LinearAtMost[] {
  return linearEquals([...variables.map(() => 1), -1], [...variables, total], 0);
}
