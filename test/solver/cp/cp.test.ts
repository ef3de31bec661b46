import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import {
  assign,
  branchOn,
  enumerateBy,
  greatestRegret,
  inOrder,
  inputOrder,
  randomOrder,
  smallestDomain,
  split,
} from '../../../solver/cp/branching.ts';
import { inconsistency } from '../../../solver/cp/inconsistency.ts';
import { luby } from '../../../solver/cp/luby.ts';
import { Minimiser, type Progress } from '../../../solver/cp/minimise.ts';
import { PropagationEngine } from '../../../solver/cp/propagation-engine.ts';
import { AllDifferent } from '../../../solver/cp/propagators/all-different.ts';
import { linearEquals } from '../../../solver/cp/propagators/linear.ts';
import { Random } from '../../../solver/cp/random.ts';
import { depthFirst } from '../../../solver/cp/search.ts';
import { Trail } from '../../../solver/cp/trail.ts';
import { Variable } from '../../../solver/cp/variable.ts';

describe('trail', () => {
  it('brings back what cells held at every level', () => {
    const action = fc.oneof(
      fc.record({ do: fc.constant('set' as const), cell: fc.nat(4), value: fc.nat(9) }),
      fc.record({ do: fc.constant('push' as const) }),
      fc.record({ do: fc.constant('pop' as const) }),
    );
    fc.assert(
      fc.property(fc.array(action, { maxLength: 300 }), (actions) => {
        const trail = new Trail();
        const cells = [0, 1, 2, 3, 4].map((value) => trail.cell(value));
        let now = [0, 1, 2, 3, 4];
        const saved: number[][] = [];
        for (const action of actions) {
          if (action.do === 'set') {
            trail.set(cells[action.cell]!, action.value);
            now[action.cell] = action.value;
          } else if (action.do === 'push') {
            trail.push();
            saved.push([...now]);
          } else if (saved.length > 0) {
            trail.pop();
            now = saved.pop()!;
          }
          expect(cells.map((cell) => trail.get(cell))).toEqual(now);
        }
      }),
    );
    expect(() => new Trail().pop()).toThrow(RangeError);
  });
});

describe('domains', () => {
  it('all three behave as a set of numbers does', () => {
    const step = fc.record({
      do: fc.constantFrom('remove', 'removeBelow', 'removeAbove', 'fix', 'push', 'pop'),
      value: fc.integer({ min: -3, max: 75 }),
    });
    fc.assert(
      fc.property(
        fc.constantFrom('bitset', 'sparse', 'interval'),
        fc.array(step, { maxLength: 40 }),
        (kind, steps) => {
          const engine = new PropagationEngine();
          const top = kind === 'interval' ? 9000 : 70;
          const variable =
            kind === 'sparse'
              ? Variable.of(
                  engine,
                  Array.from({ length: 71 }, (_, value) => value),
                )
              : Variable.range(engine, 0, top);
          let left = new Set(Array.from({ length: top + 1 }, (_, value) => value));
          const saved: Set<number>[] = [];
          for (const { do: act, value } of steps) {
            if (act === 'push') {
              engine.trail.push();
              saved.push(new Set(left));
              continue;
            }
            if (act === 'pop') {
              if (saved.length === 0) continue;
              engine.trail.pop();
              left = saved.pop()!;
              continue;
            }
            if (act === 'remove' && kind === 'interval' && value > variable.min && value < variable.max) {
              expect(() => variable.remove(value)).toThrow(RangeError);
              continue;
            }
            const keeps = (each: number): boolean =>
              act === 'remove'
                ? each !== value
                : act === 'removeBelow'
                  ? each >= value
                  : act === 'removeAbove'
                    ? each <= value
                    : each === value;
            const expected = new Set([...left].filter(keeps));
            engine.trail.push();
            saved.push(new Set(left));
            let failed = false;
            try {
              variable[act as 'remove'](value);
            } catch (error) {
              expect(error).toBe(inconsistency);
              failed = true;
            }
            expect(failed).toBe(expected.size === 0);
            if (failed) {
              engine.trail.pop();
              left = saved.pop()!;
            } else left = expected;
            expect(variable.size).toBe(left.size);
            expect(variable.values()).toEqual([...left]);
            expect([variable.min, variable.max]).toEqual([Math.min(...left), Math.max(...left)]);
          }
        },
      ),
      { numRuns: 60 },
    );
  });
});

function queens(count: number): { engine: PropagationEngine; rows: Variable[] } {
  const engine = new PropagationEngine();
  const rows = Array.from({ length: count }, () => Variable.range(engine, 0, count - 1));
  const shifted = (sign: number): Variable[] =>
    rows.map((row, column) => {
      const diagonal = Variable.range(engine, -count, 2 * count);
      engine.post(...linearEquals([1, -1], [diagonal, row], sign * column));
      return diagonal;
    });
  engine.post(new AllDifferent(rows), new AllDifferent(shifted(1)), new AllDifferent(shifted(-1)));
  return { engine, rows };
}

describe('search', () => {
  it.each([
    [
      'in input order, value by value',
      (rows: Variable[]) =>
        branchOn(
          rows,
          inputOrder,
          enumerateBy((_, value) => -value),
        ),
    ],
    ['smallest domain first, in or out', (rows: Variable[]) => branchOn(rows, smallestDomain, assign())],
    [
      'halves, then the rest',
      (rows: Variable[]) =>
        inOrder(branchOn(rows.slice(0, 3), smallestDomain, split), branchOn(rows, inputOrder, split)),
    ],
    [
      'greatest regret',
      (rows: Variable[]) =>
        branchOn(
          rows,
          greatestRegret((row, value) => (row * value) % 7),
          assign((variable) => variable.max),
        ),
    ],
    ['any order', (rows: Variable[]) => branchOn(rows, randomOrder(new Random(3), rows.length), assign())],
  ])('finds all 92 ways to place 8 queens: %s', (_, branching) => {
    const { engine, rows } = queens(8);
    const found = new Set<string>();
    const outcome = depthFirst(engine, branching(rows), () => found.add(rows.map(({ min }) => min).join()));
    expect(found.size).toBe(92);
    expect(outcome).toMatchObject({ complete: true, solutions: 92 });
    expect(engine.trail.level).toBe(0);
  });

  it('ends where it is told to, and says that it is not complete', () => {
    const { engine, rows } = queens(8);
    const branching = branchOn(rows, smallestDomain, assign());
    expect(depthFirst(engine, branching, () => undefined, { nodes_max: 10 })).toMatchObject({
      nodes: 10,
      complete: false,
    });
    let asked = 0;
    expect(depthFirst(engine, branching, () => undefined, { shouldStop: () => ++asked > 5 }).complete).toBe(
      false,
    );
    expect(depthFirst(engine, branching, () => undefined, { enough: () => true })).toMatchObject({
      solutions: 1,
      complete: false,
    });
    expect(depthFirst(queens(3).engine, branching, () => undefined).complete).toBe(true);
  });

  it('the Luby sequence', () => {
    expect(Array.from({ length: 15 }, (_, at) => luby(at + 1))).toEqual([
      1, 1, 2, 1, 1, 2, 4, 1, 1, 2, 1, 1, 2, 4, 8,
    ]);
  });
});

/** A travelling salesman's cheap cousin: assign workers to jobs at least cost. */
function assignmentOf(costs: readonly (readonly number[])[]) {
  const engine = new PropagationEngine();
  const size = costs.length;
  const jobs = costs.map(() => Variable.range(engine, 0, size - 1));
  const parts = costs.map((row) => Variable.of(engine, row));
  const objective = Variable.range(engine, 0, 1e6);
  engine.post(new AllDifferent(jobs));
  return { engine, jobs, parts, objective };
}

describe('minimisation', async () => {
  const { Element } = await import('../../../solver/cp/propagators/element.ts');
  const make = (seed: number, size = 6) => {
    const random = new Random(seed);
    const costs = Array.from({ length: size }, () => Array.from({ length: size }, () => random.below(50)));
    const { engine, jobs, parts, objective } = assignmentOf(costs);
    costs.forEach((row, worker) => {
      engine.post(new Element(row, jobs[worker]!, parts[worker]!));
    });
    engine.post(...linearEquals([...parts.map(() => 1), -1], [...parts, objective], 0));
    const permute = (left: number[], worker: number): number =>
      left.length === 0
        ? 0
        : Math.min(
            ...left.map(
              (job) =>
                costs[worker]![job]! +
                permute(
                  left.filter((each) => each !== job),
                  worker + 1,
                ),
            ),
          );
    const best = permute(
      costs.map((_, job) => job),
      0,
    );
    const progress: Progress[] = [];
    const minimiser = new Minimiser({
      engine,
      objective,
      decisions: jobs,
      onProgress: (each) => progress.push(each),
    });
    const branching = branchOn(
      jobs,
      smallestDomain,
      enumerateBy((worker, job) => costs[worker]![job]!),
    );
    return { minimiser, branching, jobs, best, progress, costs };
  };

  it.each([1, 2, 3, 4, 5])(
    'branch and bound, restarts and neighbourhoods agree with enumeration (seed %i)',
    (seed) => {
      const plain = make(seed);
      plain.minimiser.run(plain.branching);
      expect(plain.minimiser.result()).toMatchObject({
        objective: plain.best,
        bound: plain.best,
        proved: true,
      });

      const restarted = make(seed);
      const random = new Random(seed);
      restarted.minimiser.restarts(() => branchOn(restarted.jobs, randomOrder(random, 6), assign()), 4);
      expect(restarted.minimiser.result()).toMatchObject({ objective: restarted.best, proved: true });

      const improved = make(seed);
      improved.minimiser.run(improved.branching, { nodes_max: 12, enough: () => true });
      improved.minimiser.improve(
        improved.branching,
        (draw) => draw.shuffle([0, 1, 2, 3, 4, 5]).slice(0, 4),
        new Random(1),
        60,
      );
      const result = improved.minimiser.result();
      expect(result.proved).toBe(false);
      expect(result.objective).toBe(improved.best);
      expect(result.solution!.reduce((sum, job, worker) => sum + improved.costs[worker]![job]!, 0)).toBe(
        result.objective,
      );
      const costs = improved.progress.map(({ incumbent }) => incumbent!);
      expect(costs).toEqual([...costs].sort((a, b) => b - a));
      for (const { bound } of improved.progress) expect(bound).toBeLessThanOrEqual(improved.best);
    },
  );

  it('the same seed gives the same run', () => {
    const runs = [make(9, 7), make(9, 7)].map(({ minimiser, jobs }) => {
      const random = new Random(5);
      minimiser.restarts(() => branchOn(jobs, randomOrder(random, 7), assign()), 3, { nodes_max: 50 });
      return minimiser.result();
    });
    expect(runs[0]).toEqual(runs[1]);
    expect(runs[0]!.nodes).toBeLessThanOrEqual(50);
  });
});
