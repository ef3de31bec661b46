/** How the search over patterns splits a node: where the relaxation cannot make up its mind. */
import type { Alternative, Branching } from '../cp/branching.ts';
import type { SparseDomain } from '../cp/sparse-domain.ts';
import type { Variable } from '../cp/variable.ts';
import type { CapacitatedChoice } from './capacitated-choice.ts';

/**
 * A model whose weight lies on patterns with different numbers of devices of a type is split at the mean
 * number: at most so many, or more. Both sides cut the relaxation's solution off, so both bounds rise. Of
 * all (model, type) the one is split whose spread, paid for at the type's price, is the largest; the side
 * nearer to the mean comes first. A relaxation without fractions is a solution: it is taken as it is.
 */
export function splitByDevices(constraint: CapacitatedChoice, choices: readonly Variable[]): Branching {
  const types = constraint.relaxation.prices.length;
  return () => {
    const fractional = new Map<number, [pattern: number, weight: number][]>();
    constraint.relaxation.fractions((model, pattern, weight) => {
      const parts = fractional.get(model);
      if (parts) parts.push([pattern, weight]);
      else fractional.set(model, [[pattern, weight]]);
    });
    let best: { model: number; type: number; threshold: number; lowerFirst: boolean } | undefined;
    let most = 0;
    for (const [model, parts] of fractional) {
      if (constraint.relaxation.keyWeight(model) > 1e-7)
        parts.push([constraint.relaxation.keyPattern(model), constraint.relaxation.keyWeight(model)]);
      if (parts.length < 2) continue;
      for (let type = 0; type < types; type++) {
        let mean = 0;
        for (const [pattern, weight] of parts)
          mean += weight * constraint.relaxation.devices(model, pattern, type);
        let spread = 0;
        for (const [pattern, weight] of parts)
          spread += weight * Math.abs(constraint.relaxation.devices(model, pattern, type) - mean);
        // Free types still tell patterns apart, so a little is better than nothing.
        const score = spread * (constraint.relaxation.prices[type]! + 1e-3);
        if (spread < 1e-6 || score <= most) continue;
        const threshold = Math.floor(mean + 1e-9);
        let below = 0;
        for (const [pattern, weight] of parts)
          if (constraint.relaxation.devices(model, pattern, type) <= threshold) below += weight;
        most = score;
        best = { model, type, threshold, lowerFirst: below >= 0.5 };
      }
    }
    if (best === undefined) return takeRelaxation(constraint, choices);
    const { model, type, threshold, lowerFirst } = best;
    const side = (lower: boolean) => () => {
      const choice = choices[model]!;
      for (const pattern of choice.values())
        if (constraint.relaxation.devices(model, pattern, type) <= threshold !== lower)
          choice.remove(pattern);
    };
    return [side(lowerFirst), side(!lowerFirst)];
  };
}

/**
 * Fixes what is open to the relaxation's patterns: the only alternative where they cost no more than the
 * bound, for then nothing below the node is better. Otherwise (the relaxation ended early) one of them, or not.
 */
function takeRelaxation(constraint: CapacitatedChoice, choices: readonly Variable[]): readonly Alternative[] {
  const open = choices.flatMap((choice, model) => (choice.fixed ? [] : [model]));
  const first = open[0];
  if (first === undefined) return [];
  const patternOf = (model: number): number => {
    const pattern = constraint.relaxation.keyPattern(model);
    let chosen = pattern;
    constraint.relaxation.fractions((of, extra, weight) => {
      if (of === model && weight > 0.5) chosen = extra;
    });
    return choices[model]!.has(chosen) ? chosen : cheapest(constraint, choices[model]!, model);
  };
  const chosen = open.map(patternOf);
  const take = (): void => {
    open.forEach((model, at) => {
      choices[model]!.fix(chosen[at]!);
    });
  };
  let cost = 0;
  choices.forEach((choice, model) => {
    const at = open.indexOf(model);
    cost += constraint.relaxation.costOf(model, at < 0 ? choice.min : chosen[at]!);
  });
  if (cost <= constraint.relaxation.leastCost && constraint.fits(open, chosen)) return [take];
  return [() => choices[first]!.fix(chosen[0]!), () => choices[first]!.remove(chosen[0]!)];
}

function cheapest(constraint: CapacitatedChoice, choice: Variable, model: number): number {
  const { dense, size } = choice.domain as SparseDomain;
  let best = dense[0]!;
  for (let at = 1; at < size; at++)
    if (constraint.relaxation.reducedCost(model, dense[at]!) < constraint.relaxation.reducedCost(model, best))
      best = dense[at]!;
  return best;
}
