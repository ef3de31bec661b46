/** Depth-first search that lists nothing: what is left where the patterns of a search are too many to hold. */

import type { PricedModel } from './priced-model.ts';
import type { Combinations } from './repair.ts';

export interface ExhaustLimits {
  /** Told the nodes so far at each; true ends the search. */
  shouldStop: (nodes: number) => boolean;
  /** Plans must not cost more than this; asked at every node, so that it may fall. */
  most: () => number;
}

/**
 * Every combination of one model after the other, as long as the reduced costs of those chosen stay below what a
 * plan may cost above the bound of `prices`. Complete, in memory of one combination a model.
 * @param bound that `prices` give
 * @returns whether everything was seen
 */
export function exhaust(
  models: readonly PricedModel[],
  counts: Float64Array,
  prices: Float64Array,
  bound: number,
  onPlan: (combinations: Combinations, cost: number) => void,
  limits: ExhaustLimits,
): boolean {
  const least = models.map((model) => model.solve(prices));
  const forbidden = new Float64Array(counts.length).fill(Number.POSITIVE_INFINITY);
  const taken: Combinations = models.map(() => new Int32Array(counts.length).fill(-1));
  const rounding = 1e-6 + 1e-10 * Math.abs(bound);
  let nodes = 0;
  const visit = (model: number, room: Float64Array, reduced: number, cost: number): boolean => {
    if (model === models.length) {
      if (cost <= limits.most()) onPlan(taken, cost);
      return true;
    }
    const slack = limits.most() - bound - reduced;
    // Nothing is visited that does not fit beside the models before.
    models[model]!.solveBeside(prices, room, forbidden);
    return models[model]!.enumerate(
      prices,
      least[model]! + slack + rounding,
      room,
      (options, devices, own) => {
        if (limits.shouldStop(++nodes)) return false;
        let priced = own;
        for (let type = 0; type < counts.length; type++) priced += prices[type]! * devices[type]!;
        const spent = reduced + priced - least[model]!;
        // The ceiling may have fallen since this list began.
        if (bound + spent > limits.most() + rounding) return true;
        taken[model]!.set(options);
        return visit(
          model + 1,
          room.map((free, type) => free - devices[type]!),
          spent,
          cost + own,
        );
      },
    );
  };
  return visit(0, counts, 0, 0);
}
