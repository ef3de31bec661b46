import type { Random } from './random.ts';
import type { Variable } from './variable.ts';

/** One way on from a node: posts something that shrinks the problem. May throw `inconsistency`. */
export type Alternative = () => void;

/**
 * The alternatives at the present node, best first; together they must leave no solution out. Empty: this
 * branching has nothing left to decide.
 */
export type Branching = () => readonly Alternative[];

/** The first of `branchings` that has something to decide. */
export function inOrder(...branchings: readonly Branching[]): Branching {
  return () => {
    for (const branching of branchings) {
      const alternatives = branching();
      if (alternatives.length > 0) return alternatives;
    }
    return [];
  };
}

/** Which variable next: the smallest number among those not fixed; ties go to the first. */
export type VariableOrder = (variable: Variable, index: number) => number;

/** What to do with it. */
export type ValueChoice = (variable: Variable, index: number) => readonly Alternative[];

export function branchOn(
  variables: readonly Variable[],
  order: VariableOrder,
  choice: ValueChoice,
): Branching {
  return () => {
    let best = -1;
    let least = Number.POSITIVE_INFINITY;
    for (let index = 0; index < variables.length; index++) {
      const variable = variables[index]!;
      if (variable.fixed) continue;
      const rank = order(variable, index);
      if (best >= 0 && rank >= least) continue;
      best = index;
      least = rank;
    }
    return best < 0 ? [] : choice(variables[best]!, best);
  };
}

export const inputOrder: VariableOrder = (_variable, index) => index;
export const smallestDomain: VariableOrder = (variable) => variable.size;
/** The same order for one run: draw it again for each restart. */
export function randomOrder(random: Random, count: number): VariableOrder {
  const ranks = random.shuffle(Array.from({ length: count }, (_, index) => index));
  return (_variable, index) => ranks[index]!;
}

/** Greatest regret first: the gap between the cheapest value left and the second cheapest. */
export function greatestRegret(cost: (index: number, value: number) => number): VariableOrder {
  return (variable, index) => {
    let best = Number.POSITIVE_INFINITY;
    let second = Number.POSITIVE_INFINITY;
    for (const value of variable.values()) {
      const of = cost(index, value);
      if (of < best) {
        second = best;
        best = of;
      } else if (of < second) second = of;
    }
    return best - second;
  };
}

/** variable = value, or not. The value defaults to the least. */
export function assign(
  pick: (variable: Variable, index: number) => number = (variable) => variable.min,
): ValueChoice {
  return (variable, index) => {
    const value = pick(variable, index);
    return [() => variable.fix(value), () => variable.remove(value)];
  };
}

/** Every value, in the order of `cost`. */
export function enumerateBy(cost: (index: number, value: number) => number): ValueChoice {
  return (variable, index) =>
    variable
      .values()
      .sort((a, b) => cost(index, a) - cost(index, b))
      .map((value) => () => variable.fix(value));
}

/** Lower half, upper half. */
export const split: ValueChoice = (variable) => {
  const middle = Math.floor((variable.min + variable.max) / 2);
  return [() => variable.removeAbove(middle), () => variable.removeBelow(middle + 1)];
};
