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
  for (let round = 0; round < (test.rounds ?? 60); round++) {
    const engine = new PropagationEngine();
    // Both representations of a domain, in turns.
    const variables = test.domains.map((values) => {
      const contiguous = values.every((value, at) => value === values[0]! + at);
      return contiguous && round % 2 === 0
        ? Variable.range(engine, values[0]!, values.at(-1)!)
        : Variable.of(engine, values);
    });
    const snapshots: number[][][] = [];
    const step = (change: () => void): boolean => {
      const asked = variables.map((variable) => variable.values());
      let failed = false;
      try {
        change();
        engine.propagate();
      } catch (error) {
        if (error !== inconsistency) throw error;
        engine.forget();
        failed = true;
      }
      const solutions = all.filter((solution) =>
        solution.every((value, at) => asked[at]!.includes(value) && cut(at, value)),
      );
      if (failed) {
        expect(solutions, 'failed although there is a solution').toEqual([]);
        return false;
      }
      for (const solution of solutions)
        for (const [at, value] of solution.entries())
          expect(variables[at]!.has(value), `value ${value} of variable ${at} is in ${solution}`).toBe(true);
      if (test.consistency === 'domain')
        for (const [at, variable] of variables.entries())
          for (const value of variable.values())
            expect(
              solutions.some((solution) => solution[at] === value),
              `value ${value} of variable ${at} has no solution`,
            ).toBe(true);
      if (variables.every(({ fixed }) => fixed)) {
        decided++;
        expect(test.holds(variables.map(({ min }) => min))).toBe(true);
      }
      return true;
    };
    let cut: (at: number, value: number) => boolean = () => true;
    if (!step(() => engine.post(...test.post(engine, variables)))) continue;
    for (;;) {
      const open = variables.flatMap((variable, at) => (variable.fixed ? [] : [at]));
      if (open.length === 0) break;
      const at = open[random.below(open.length)]!;
      const values = variables[at]!.values();
      const value = values[random.below(values.length)]!;
      const kind = random.below(4);
      cut = (variable, of) =>
        variable !== at ||
        (kind === 0 ? of === value : kind === 1 ? of !== value : kind === 2 ? of <= value : of >= value);
      snapshots.push(variables.map((variable) => variable.values()));
      engine.trail.push();
      const alive = step(() => {
        const variable = variables[at]!;
        if (kind === 0) variable.fix(value);
        else if (kind === 1) variable.remove(value);
        else if (kind === 2) variable.removeAbove(value);
        else variable.removeBelow(value);
      });
      if (!alive) {
        engine.trail.pop();
        expect(variables.map((variable) => variable.values())).toEqual(snapshots.pop());
        if (random.below(3) === 0) break;
      }
    }
    while (engine.trail.level > 0) {
      engine.trail.pop();
      expect(variables.map((variable) => variable.values())).toEqual(snapshots.pop());
    }
  }
  // A case in which nothing is ever decided would test little.
  if (all.length > 0) expect(decided).toBeGreaterThan(0);
}

function product(domains: readonly (readonly number[])[]): number[][] {
  return domains.reduce<number[][]>(
    (tuples, values) => tuples.flatMap((tuple) => values.map((value) => [...tuple, value])),
    [[]],
  );
}
