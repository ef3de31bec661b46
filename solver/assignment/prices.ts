/**
 * The Lagrangian bound: capacities are taken out of the problem and each device gets a price instead. At any
 * non-negative prices, Σ_m (model m alone at these prices) − Σ_n price_n·count_n is at most the optimum
 * (Geoffrion, 1974). The bound is concave in the prices and has kinks; Shor's r-algorithm climbs it:
 * steepest ascent in a space that is stretched, after every step, across the ridge just found.
 */
import type { PricedModel } from './priced-model.ts';

export interface PriceSearch {
  /** Prices of the best bound found, by type. */
  prices: Float64Array;
  bound: number;
  evaluations: number;
}

/** Stretch of the space at a ridge (Shor suggests 2 to 3). Higher: faster, and more likely to jam. */
const stretch = 2.5;
/** A search ends when the bound has gained less than this share in `patience` steps. */
const gain_min = 2e-5;
const patience = 8;
/** Steps along one direction before the next steps are made longer. */
const steps_before_longer = 2;

/**
 * @param start prices to begin with
 * @param scale typical price of a device, by type; how far the first steps go
 */
export function searchPrices(
  models: readonly PricedModel[],
  counts: Float64Array,
  start: Float64Array,
  scale: Float64Array,
  evaluations_max: number,
): PriceSearch {
  const types = counts.length;
  const best: PriceSearch = { prices: start.slice(), bound: Number.NEGATIVE_INFINITY, evaluations: 0 };
  const clipped = new Float64Array(types);
  /** Bound at `prices`, negative prices taken as zero at a penalty, and its supergradient. */
  const evaluate = (prices: Float64Array, gradient: Float64Array): number => {
    best.evaluations++;
    let bound = 0;
    let penalty = 0;
    gradient.fill(0);
    for (let type = 0; type < types; type++) clipped[type] = Math.max(0, prices[type]!);
    for (const model of models) {
      bound += model.solve(clipped);
      model.take(gradient);
    }
    for (let type = 0; type < types; type++) {
      bound -= clipped[type]! * counts[type]!;
      if (prices[type]! < 0) {
        penalty -= prices[type]! * counts[type]!;
        gradient[type] = counts[type]!;
      } else gradient[type]! -= counts[type]!;
    }
    if (bound > best.bound) {
      best.bound = bound;
      best.prices.set(clipped);
    }
    return bound - penalty;
  };

  const space = new Float64Array(types * types);
  for (let type = 0; type < types; type++) space[type * types + type] = scale[type]!;
  const at = start.slice();
  const gradient = new Float64Array(types);
  const previous = new Float64Array(types);
  const inner = new Float64Array(types);
  const move = new Float64Array(types);
  if (evaluate(at, gradient) === Number.POSITIVE_INFINITY)
    return { ...best, bound: Number.POSITIVE_INFINITY };
  let step = 0.25;
  let idle = 0;
  while (best.evaluations < evaluations_max && idle < patience) {
    const before = best.bound;
    let length = 0;
    for (let column = 0; column < types; column++) {
      let sum = 0;
      for (let row = 0; row < types; row++) sum += space[row * types + column]! * gradient[row]!;
      inner[column] = sum;
      length += sum * sum;
    }
    length = Math.sqrt(length);
    if (length < 1e-12) break;
    for (let row = 0; row < types; row++) {
      let sum = 0;
      for (let column = 0; column < types; column++) sum += space[row * types + column]! * inner[column]!;
      move[row] = sum / length;
    }
    previous.set(gradient);
    let steps = 0;
    for (;;) {
      for (let type = 0; type < types; type++) at[type]! += step * move[type]!;
      evaluate(at, gradient);
      steps++;
      let ascent = 0;
      for (let type = 0; type < types; type++) ascent += gradient[type]! * move[type]!;
      if (ascent <= 0 || best.evaluations >= evaluations_max) break;
      if (steps >= steps_before_longer) step *= 1.5;
    }
    if (steps === 1) step *= 0.9;
    // Stretch along the change of the gradient, seen in the stretched space.
    let norm = 0;
    for (let column = 0; column < types; column++) {
      let sum = 0;
      for (let row = 0; row < types; row++)
        sum += space[row * types + column]! * (gradient[row]! - previous[row]!);
      inner[column] = sum;
      norm += sum * sum;
    }
    if (norm > 1e-18) {
      norm = Math.sqrt(norm);
      for (let row = 0; row < types; row++) {
        let along = 0;
        for (let column = 0; column < types; column++)
          along += (space[row * types + column]! * inner[column]!) / norm;
        for (let column = 0; column < types; column++)
          space[row * types + column]! += ((1 / stretch - 1) * along * inner[column]!) / norm;
      }
    }
    idle = best.bound - before > gain_min * Math.abs(best.bound) ? 0 : idle + 1;
  }
  return best;
}
