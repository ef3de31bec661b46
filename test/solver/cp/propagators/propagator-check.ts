/**
 * Holds a propagator against a plain predicate, as Gecode tests its own: the domains are cut at random, step
 * by step, and after each step every solution by enumeration must still be there; a failure must mean that
 * there is none; with everything fixed the propagator must decide; and backtracking must bring all back.
 */
import { expect } from 'vitest';
import { inconsistency } from '../../../../solver/cp/inconsistency.ts';
import { PropagationEngine } from '../../../../solver/cp/propagation-engine.ts';
import type { Propagator } from '../../../../solver/cp/propagator.ts';
import { Random } from '../../../../solver/cp/random.ts';
import { Variable } from '../../../../solver/cp/variable.ts';

export interface PropagatorCase {
  /** Values of each variable at the start. */
  domains: readonly (readonly number[])[];
  post: (engine: PropagationEngine, variables: readonly Variable[]) => Propagator[];
  holds: (values: readonly number[]) => boolean;
  /** What is promised beyond soundness: every value left has a solution. */
  consistency?: 'domain';
  seed?: number;
  rounds?: number;
}

export function checkPropagator(test: PropagatorCase): void {
  const random = new Random(test.seed ?? 1);
  const all = product(test.domains).filter(test.holds);
  let decided = 0;
  for (let round = 0; round < (test.rounds ?? 60); round++)
    decided += new Round(test, all, round).run(random);
  // A case in which nothing is ever decided would test little.
  if (all.length > 0) expect(decided).toBeGreaterThan(0);
}

/** One way from the domains as they are to where all is fixed or failed, and back. */
class Round {
  readonly #test: PropagatorCase;
  /** Every solution, by enumeration. */
  readonly #all: readonly (readonly number[])[];
  readonly #engine = new PropagationEngine();
  readonly #variables: Variable[];
  readonly #snapshots: number[][][] = [];
  #decided = 0;

  constructor(test: PropagatorCase, all: readonly (readonly number[])[], round: number) {
    this.#test = test;
    this.#all = all;
    // Both representations of a domain, in turns.
    this.#variables = test.domains.map((values) => {
      const contiguous = values.every((value, at) => value === values[0]! + at);
      return contiguous && round % 2 === 0
        ? Variable.range(this.#engine, values[0]!, values.at(-1)!)
        : Variable.of(this.#engine, values);
    });
  }

  /** @returns how often everything was fixed */
  run(random: Random): number {
    const engine = this.#engine;
    const posted = this.#step(
      () => engine.post(...this.#test.post(engine, this.#variables)),
      () => true,
    );
    while (posted) {
      const open = this.#variables.flatMap((variable, at) => (variable.fixed ? [] : [at]));
      if (open.length === 0) break;
      if (this.#cut(open[random.below(open.length)]!, random)) continue;
      this.#back();
      if (random.below(3) === 0) break;
    }
    while (engine.trail.level > 0) this.#back();
    return this.#decided;
  }

  /** Makes one domain smaller, at random. @returns whether there may be a solution left */
  #cut(at: number, random: Random): boolean {
    const variable = this.#variables[at]!;
    const values = variable.values();
    const value = values[random.below(values.length)]!;
    const kind = random.below(4);
    this.#snapshots.push(this.#values());
    this.#engine.trail.push();
    return this.#step(
      () => {
        if (kind === 0) variable.fix(value);
        else if (kind === 1) variable.remove(value);
        else if (kind === 2) variable.removeAbove(value);
        else variable.removeBelow(value);
      },
      (of, each) =>
        of !== at ||
        (kind === 0
          ? each === value
          : kind === 1
            ? each !== value
            : kind === 2
              ? each <= value
              : each >= value),
    );
  }

  #back(): void {
    this.#engine.trail.pop();
    expect(this.#values()).toEqual(this.#snapshots.pop());
  }

  #values(): number[][] {
    return this.#variables.map((variable) => variable.values());
  }

  /**
   * @param stays whether the change leaves a value to a variable
   * @returns whether propagation did not fail
   */
  #step(change: () => void, stays: (at: number, value: number) => boolean): boolean {
    const asked = this.#values();
    let failed = false;
    try {
      change();
      this.#engine.propagate();
    } catch (error) {
      if (error !== inconsistency) throw error;
      this.#engine.forget();
      failed = true;
    }
    const solutions = this.#all.filter((solution) =>
      solution.every((value, at) => asked[at]!.includes(value) && stays(at, value)),
    );
    if (failed) expect(solutions, 'failed although there is a solution').toEqual([]);
    else this.#checkAgainst(solutions);
    return !failed;
  }

  #checkAgainst(solutions: readonly (readonly number[])[]): void {
    const variables = this.#variables;
    for (const solution of solutions)
      for (const [at, value] of solution.entries())
        expect(variables[at]!.has(value), `value ${value} of variable ${at} is in ${solution}`).toBe(true);
    if (this.#test.consistency === 'domain')
      for (const [at, variable] of variables.entries())
        for (const value of variable.values())
          expect(
            solutions.some((solution) => solution[at] === value),
            `value ${value} of variable ${at} has no solution`,
          ).toBe(true);
    if (!variables.every(({ fixed }) => fixed)) return;
    this.#decided++;
    expect(this.#test.holds(variables.map(({ min }) => min))).toBe(true);
  }
}

function product(domains: readonly (readonly number[])[]): number[][] {
  return domains.reduce<number[][]>(
    (tuples, values) => tuples.flatMap((tuple) => values.map((value) => [...tuple, value])),
    [[]],
  );
}
