import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { generateInstance } from '../../../bench/solver/generate.ts';
import { choiceCost } from '../../../solver/assignment/check.ts';
import type { AssignmentProblem } from '../../../solver/assignment/problem.ts';
import { paretoOptions } from '../../../solver/assignment/reduce.ts';
import { solveAssignment } from '../../../solver/assignment/solve.ts';

/** By trying everything: combinations of options a model, then of models. */
function enumerated(problem: AssignmentProblem & { shares: number }): number {
  const combinations = problem.options.map((options) => {
    const all: { devices: number[]; cost: number }[] = [];
    const visit = (from: number, share: number, types: number, devices: number[], cost: number): void => {
      if (share === problem.shares) all.push({ devices, cost });
      for (let index = from; index < options.length; index++) {
        const option = options[index]!;
        if (share + option.share > problem.shares || types & (1 << option.type)) continue;
        const more = [...devices];
        more[option.type]! += option.devices;
        visit(index + 1, share + option.share, types | (1 << option.type), more, cost + option.cost);
      }
    };
    visit(
      0,
      0,
      0,
      problem.counts.map(() => 0),
      0,
    );
    return all;
  });
  const search = (model: number, left: readonly number[], cost: number, best: number): number => {
    if (model === combinations.length) return Math.min(best, cost);
    for (const { devices, cost: more } of combinations[model]!) {
      if (cost + more >= best) continue;
      const rest = left.map((count, type) => count - devices[type]!);
      if (rest.every((count) => count >= 0)) best = search(model + 1, rest, cost + more, best);
    }
    return best;
  };
  return search(0, problem.counts, 0, Number.POSITIVE_INFINITY);
}

const small: fc.Arbitrary<AssignmentProblem & { shares: number }> = fc
  .record({ types: fc.integer({ min: 1, max: 3 }), shares: fc.integer({ min: 1, max: 3 }) })
  .chain(({ types, shares }) =>
    fc.record({
      counts: fc.array(fc.integer({ min: 0, max: 8 }), { minLength: types, maxLength: types }),
      shares: fc.constant(shares),
      options: fc.array(
        fc.array(
          fc.record({
            type: fc.nat(types - 1),
            devices: fc.nat(5),
            share: fc.integer({ min: 1, max: shares }),
            cost: fc.nat(60),
          }),
          { maxLength: 8 },
        ),
        { maxLength: 5 },
      ),
    }),
  );

describe('assignment', () => {
  // Of 2 patterns nothing can be listed: the search that lists nothing has to prove it.
  it.each([undefined, 2])('agrees with enumeration on whatever comes, patterns_max %s', (patterns_max) => {
    fc.assert(
      fc.property(small, (problem) => {
        const best = enumerated(problem);
        const result = solveAssignment(problem, patterns_max === undefined ? {} : { patterns_max });
        expect(result.status).toBe(best === Number.POSITIVE_INFINITY ? 'infeasible' : 'optimal');
        if (result.status === 'infeasible') return;
        expect(result.cost).toBe(best);
        expect(result.bound).toBe(best);
        expect(choiceCost(problem, result.choice!)).toBe(best);
      }),
      { numRuns: 400 },
    );
  });

  it.each(['single', 'split'] as const)('agrees with enumeration on generated %s instances', (mode) => {
    for (const kind of ['roofline', 'uniform'] as const) {
      const whole = generateInstance({ models: 8, types: 3, mode, kind, seed: 4 });
      const kept = paretoOptions(whole);
      // Few enough options for enumeration, many enough to compete for devices.
      const problem = {
        ...whole,
        shares: 4,
        counts: whole.counts.map((count) => Math.ceil(count / 2)),
        options: whole.options
          .slice(0, 5)
          .map((options, model) =>
            kept[model]!.map((index) => options[index]!).filter((_, index) => index % 3 === 0),
          ),
      };
      const best = enumerated(problem);
      const result = solveAssignment(problem);
      expect(result.cost ?? Number.POSITIVE_INFINITY).toBe(best);
    }
  });

  it('the worked example of docs/solver.md', () => {
    const option = (type: number, devices: number, cost: number) => ({ type, devices, share: 1, cost });
    const result = solveAssignment({
      counts: [4, 4],
      shares: 1,
      options: [
        [option(0, 1, 60), option(0, 2, 30), option(1, 2, 70), option(1, 4, 40)],
        [option(0, 2, 50), option(0, 4, 20), option(1, 4, 80)],
        [option(0, 1, 40), option(1, 1, 60), option(1, 2, 45)],
      ],
    });
    expect(result).toMatchObject({ status: 'optimal', cost: 125, choice: [[1], [0], [2]] });
    expect(result.prices.map(Math.round)).toEqual([15, 5]);
  });

  it('models may have different numbers of shares', () => {
    const option = (type: number, share: number, cost: number) => ({ type, devices: share, share, cost });
    const problem: AssignmentProblem = {
      counts: [3, 9],
      shares: [2, 3],
      options: [
        [option(0, 1, 1), option(0, 2, 2), option(1, 1, 10), option(1, 2, 20)],
        [
          option(0, 1, 1),
          option(0, 2, 2),
          option(0, 3, 3),
          option(1, 1, 4),
          option(1, 2, 8),
          option(1, 3, 12),
        ],
      ],
    };
    const result = solveAssignment(problem);
    expect(result).toMatchObject({ status: 'optimal', cost: 11, choice: [[1], [0, 4]] });
    expect(choiceCost(problem, result.choice!)).toBe(11);
    expect(() => solveAssignment({ ...problem, shares: [2] })).toThrow(/shares of 1 models/);
  });

  it('proves instances of the size of a cluster, deterministically', () => {
    const problem = generateInstance({ models: 32, types: 5, mode: 'split', kind: 'uniform', seed: 3 });
    const first = solveAssignment(problem);
    expect(first.status).toBe('optimal');
    expect(choiceCost(problem, first.choice!)).toBe(first.cost);
    expect(solveAssignment(problem)).toEqual(first);
  });

  it('a stopped search states a gap that holds, or says that it knows nothing', () => {
    const problem = generateInstance({ models: 16, types: 5, mode: 'split', kind: 'uniform', seed: 3 });
    const best = solveAssignment(problem).cost!;
    for (const allowed of [0, 1, 5, 20, 60]) {
      let asked = 0;
      const progress: (number | undefined)[] = [];
      const result = solveAssignment(problem, {
        shouldStop: () => ++asked > allowed,
        onProgress: ({ cost, bound }) => {
          progress.push(cost);
          expect(bound).toBeLessThanOrEqual(best);
        },
      });
      expect(result.bound).toBeLessThanOrEqual(best);
      if (result.cost === undefined) expect(result.status).toBe('unknown');
      else expect(result.cost).toBeGreaterThanOrEqual(best);
      expect(progress.at(-1)).toBe(result.cost);
    }
  });

  it('a warm start gives the same optimum after a node left or joined', () => {
    const before = generateInstance({ models: 16, types: 5, mode: 'split', kind: 'roofline', seed: 2 });
    const { prices, choice } = solveAssignment(before);
    for (const change of [-4, 4]) {
      const now = {
        ...before,
        counts: before.counts.map((count, type) => count + (type === 1 ? change : 0)),
      };
      expect(solveAssignment(now, { warm: { prices, choice: choice! } }).cost).toBe(
        solveAssignment(now).cost,
      );
    }
  });

  it('the checker refuses what breaks a rule', () => {
    const problem: AssignmentProblem = {
      counts: [2],
      shares: 2,
      options: [
        [
          { type: 0, devices: 1, share: 1, cost: 1 },
          { type: 0, devices: 3, share: 2, cost: 1 },
          { type: 0, devices: 2, share: 2, cost: 7 },
        ],
      ],
    };
    expect(choiceCost(problem, [[2]])).toBe(7);
    for (const wrong of [[], [[0]], [[0, 0]], [[1]], [[9]], [[2], [2]]])
      expect(choiceCost(problem, wrong)).toBeUndefined();
  });

  it('names the number that makes no sense', () => {
    const option = { type: 0, devices: 1, share: 1, cost: 1 };
    const problem = { counts: [1], shares: 1, options: [[option]] };
    const wrong: [AssignmentProblem, RegExp][] = [
      [{ ...problem, counts: [-1] }, /counts\[0\] is -1/],
      [{ ...problem, shares: 0 }, /shares is 0/],
      [{ ...problem, options: [[{ ...option, cost: 1.5 }]] }, /options\[0\]\[0\]\.cost is 1\.5/],
      [{ ...problem, options: [[{ ...option, type: 1 }]] }, /there are 1 types/],
      [{ ...problem, options: [[{ ...option, share: 2 }]] }, /more than the whole/],
      [{ ...problem, options: [[{ ...option, devices: Number.NaN }]] }, /devices is NaN/],
    ];
    for (const [each, message] of wrong) expect(() => solveAssignment(each)).toThrow(message);
    expect(solveAssignment({ counts: [], shares: 4, options: [] })).toMatchObject({
      status: 'optimal',
      cost: 0,
    });
    expect(solveAssignment({ counts: [0], shares: 1, options: [[option]] }).status).toBe('infeasible');
  });
});
