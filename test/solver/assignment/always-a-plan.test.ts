import { describe, expect, it } from 'vitest';
import { generateInstance, seededShape, shapeName } from '../../../bench/solver/generate.ts';
import { choiceCost } from '../../../solver/assignment/check.ts';
import type { AssignmentProblem } from '../../../solver/assignment/problem.ts';
import { solveAssignment } from '../../../solver/assignment/solve.ts';

/** Seeded instances with the optimum that CP-SAT proved. */
const proved: readonly (readonly [seed: number, optimum: number])[] = [
  // Where devices are free, no direction of the prices looks better than none at all.
  [23, 3914],
  [35, 8860],
  [74, 37581],
  [75, 35482],
  [131, 2697],
  [155, 15287],
  [194, 28943],
  // The cheapest plan costs 1.4 times the bound: little of what is cheap makes one.
  [56, 2340842],
  // All patterns are too many to list.
  [5, 39337],
];

/** Those where models that choose one after the other come to no plan soon, and the hardest of others. */
const knotted = [16, 56, 59, 74, 125, 152, 194, 241, 280];

describe('whenever there is a plan', () => {
  it.each(proved)('seed %i is solved and proved', (seed, optimum) => {
    const problem = generateInstance(seededShape(seed));
    const result = solveAssignment(problem, { nodes_max: 60_000 });
    expect(result).toMatchObject({ status: 'optimal', cost: optimum, bound: optimum });
    expect(choiceCost(problem, result.choice!)).toBe(optimum);
  });

  it('one is found within few nodes', () => {
    const seeds = [...new Set([...Array(40).keys(), ...knotted])];
    const without = seeds.map(seededShape).filter((shape) => {
      const problem = generateInstance(shape);
      let found = false;
      const { choice } = solveAssignment(problem, {
        nodes_max: 2000,
        shouldStop: () => found,
        onProgress: ({ cost }) => {
          found = cost !== undefined;
        },
      });
      return choice === undefined || choiceCost(problem, choice) === undefined;
    });
    expect(without.map(shapeName)).toEqual([]);
  });

  it('one is found where more ways cost the same than can be listed', () => {
    const types = [0, 1, 2, 3, 4, 5, 6, 7];
    const options = types.flatMap((type) =>
      Array.from({ length: 12 }, (_, at) => ({ type, devices: at + 1, share: at + 1, cost: at + 1 })),
    );
    // 96 models of 12 devices each, and not one device more.
    const problem: AssignmentProblem = {
      counts: types.map(() => 144),
      shares: 12,
      options: Array.from({ length: 96 }, () => options),
    };
    const result = solveAssignment(problem, { nodes_max: 2000 });
    expect(result).toMatchObject({ status: 'optimal', cost: 1152 });
    expect(choiceCost(problem, result.choice!)).toBe(1152);
  });

  it('what was tried is told where the search ends before', () => {
    const problem = generateInstance(seededShape(16));
    const result = solveAssignment(problem, { nodes_max: 0 });
    expect(result).toMatchObject({ status: 'unknown', nodes: 0, choice: undefined });
    expect(result.repairs).toBeGreaterThan(10_000);
    expect(result.bound).toBeGreaterThan(0);
  });
});
