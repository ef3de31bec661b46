import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { Propagator } from '../../../../solver/cp/propagator.ts';
import { AllDifferent } from '../../../../solver/cp/propagators/all-different.ts';
import { BinaryKnapsack } from '../../../../solver/cp/propagators/binary-knapsack.ts';
import { Cumulative } from '../../../../solver/cp/propagators/cumulative.ts';
import { Element } from '../../../../solver/cp/propagators/element.ts';
import { Implication, type Literal } from '../../../../solver/cp/propagators/implication.ts';
import { LinearAtMost, linearEquals, sum } from '../../../../solver/cp/propagators/linear.ts';
import { Table } from '../../../../solver/cp/propagators/table.ts';
import { checkPropagator } from './propagator-check.ts';

const range = (min: number, max: number): number[] =>
  Array.from({ length: max - min + 1 }, (_, index) => min + index);
const dot = (a: readonly number[], b: readonly number[]): number =>
  a.reduce((total, each, at) => total + each * b[at]!, 0);
const seed = fc.integer({ min: 1, max: 1e6 });
const domain = fc
  .uniqueArray(fc.integer({ min: -4, max: 6 }), { minLength: 1, maxLength: 5 })
  .map((values) => values.sort((a, b) => a - b));
const settings = { numRuns: 25 };

describe('propagators against plain predicates', () => {
  it('linear at most', () => {
    fc.assert(
      fc.property(
        fc.array(fc.tuple(domain, fc.integer({ min: -3, max: 3 })), { minLength: 1, maxLength: 4 }),
        fc.integer({ min: -10, max: 12 }),
        seed,
        (terms, bound, seed) => {
          const coefficients = terms.map(([, coefficient]) => coefficient);
          checkPropagator({
            domains: terms.map(([values]) => values),
            post: (_, variables) => [new LinearAtMost(coefficients, variables, bound)],
            holds: (values) => dot(coefficients, values) <= bound,
            seed,
            rounds: 8,
          });
        },
      ),
      settings,
    );
  });

  it('linear equality and sum', () => {
    checkPropagator({
      domains: [range(0, 4), range(-2, 3), range(1, 5)],
      post: (_, variables) => linearEquals([2, -3, 1], variables, 4),
      holds: (values) => dot([2, -3, 1], values) === 4,
    });
    checkPropagator({
      domains: [range(0, 3), range(0, 3), range(0, 9)],
      post: (_, variables) => sum(variables.slice(0, 2), variables[2]!),
      holds: ([a, b, c]) => a! + b! === c,
    });
  });

  it('element is domain-consistent', () => {
    fc.assert(
      fc.property(
        fc.array(fc.integer({ min: -3, max: 5 }), { minLength: 1, maxLength: 6 }),
        seed,
        (table, seed) =>
          checkPropagator({
            domains: [range(-1, 6), range(-3, 5)],
            post: (_, [index, value]) => [new Element(table, index!, value!)],
            holds: ([index, value]) => table[index!] === value,
            consistency: 'domain',
            seed,
            rounds: 8,
          }),
      ),
      settings,
    );
  });

  it('table is domain-consistent', () => {
    fc.assert(
      fc.property(
        fc.array(fc.array(fc.integer({ min: 0, max: 3 }), { minLength: 3, maxLength: 3 }), {
          minLength: 1,
          maxLength: 12,
        }),
        seed,
        (tuples, seed) =>
          checkPropagator({
            domains: [range(0, 3), range(0, 3), range(0, 3)],
            post: (engine, variables) => [new Table(engine.trail, variables, tuples)],
            holds: (values) => tuples.some((tuple) => tuple.every((value, at) => value === values[at])),
            consistency: 'domain',
            seed,
            rounds: 8,
          }),
      ),
      settings,
    );
  });

  it('all different is domain-consistent', () => {
    fc.assert(
      fc.property(fc.array(domain, { minLength: 1, maxLength: 4 }), seed, (domains, seed) =>
        checkPropagator({
          domains,
          post: (_, variables) => [new AllDifferent(variables)],
          holds: (values) => new Set(values).size === values.length,
          consistency: 'domain',
          seed,
          rounds: 8,
        }),
      ),
      settings,
    );
  });

  it('cumulative capacity', () => {
    const task = fc.record({
      duration: fc.integer({ min: 0, max: 4 }),
      demand: fc.integer({ min: 0, max: 3 }),
    });
    fc.assert(
      fc.property(fc.array(task, { minLength: 1, maxLength: 4 }), seed, (tasks, seed) =>
        checkPropagator({
          domains: tasks.map(() => range(0, 5)),
          post: (_, variables) => [
            new Cumulative(
              tasks.map((each, at) => ({ ...each, start: variables[at]! })),
              4,
            ),
          ],
          holds: (starts) =>
            range(0, 10).every(
              (time) =>
                tasks.reduce(
                  (used, { duration, demand }, at) =>
                    used + (starts[at]! <= time && time < starts[at]! + duration ? demand : 0),
                  0,
                ) <= 4,
            ),
          seed,
          rounds: 6,
        }),
      ),
      settings,
    );
  });

  it('implication', () => {
    const kind = fc.constantFrom('at most', 'at least', 'equal to', 'other than');
    const literal = fc.record({ is: kind, value: fc.integer({ min: -1, max: 4 }) });
    const truth = ({ is, value }: Pick<Literal, 'is' | 'value'>, of: number): boolean =>
      is === 'at most'
        ? of <= value
        : is === 'at least'
          ? of >= value
          : (of === value) === (is === 'equal to');
    fc.assert(
      fc.property(fc.array(literal, { minLength: 1, maxLength: 3 }), seed, (literals, seed) =>
        checkPropagator({
          domains: literals.map(() => range(0, 3)),
          post: (_, variables) => {
            const all = literals.map((each, at) => ({ ...each, variable: variables[at]! }));
            return [new Implication(all.slice(0, -1), all.at(-1)!)];
          },
          holds: (values) =>
            literals.slice(0, -1).some((each, at) => !truth(each, values[at]!)) ||
            truth(literals.at(-1)!, values.at(-1)!),
          consistency: 'domain',
          seed,
          rounds: 8,
        }),
      ),
      settings,
    );
  });

  it('binary knapsack', () => {
    const item = fc.tuple(fc.integer({ min: 0, max: 5 }), fc.integer({ min: 0, max: 5 }));
    fc.assert(
      fc.property(
        fc.array(item, { minLength: 1, maxLength: 5 }),
        fc.integer({ min: 0, max: 12 }),
        seed,
        (items, capacity, seed) => {
          const weights = items.map(([weight]) => weight);
          const profits = items.map(([, profit]) => profit);
          checkPropagator({
            domains: [...items.map(() => [0, 1]), range(0, 25)],
            post: (_, variables) => [
              new BinaryKnapsack(weights, profits, variables.slice(0, -1), capacity, variables.at(-1)!),
            ],
            holds: (values) =>
              dot(weights, values.slice(0, -1)) <= capacity &&
              dot(profits, values.slice(0, -1)) === values.at(-1),
            seed,
            rounds: 8,
          });
        },
      ),
      settings,
    );
  });

  it('the harness notices a propagator that removes too much, too little, or never decides', () => {
    class Wrong extends Propagator {
      readonly #act: () => void;
      constructor(act: () => void) {
        super();
        this.#act = act;
      }
      watch(): void {}
      propagate(): void {
        this.#act();
      }
    }
    const holds = ([a, b]: readonly number[]): boolean => a! <= b!;
    const domains = [range(0, 3), range(0, 3)];
    expect(() =>
      checkPropagator({ domains, holds, post: (_, [a]) => [new Wrong(() => a!.removeAbove(2))] }),
    ).toThrow();
    expect(() => checkPropagator({ domains, holds, post: () => [new Wrong(() => undefined)] })).toThrow();
  });
});
