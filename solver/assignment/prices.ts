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
/**
 * A search that ended begins again at the best prices so far, with a round space and steps this much shorter: where
 * the first steps overshoot a narrow ridge, or the space was stretched into a needle, the bound is still far below.
 */
const shorter = 0.1;
/** How much farther along the scale the next prices are in the look for where to begin, and how far it goes. */
const farther = 4;
const far_max = 2 ** 40;
/** So many of these one after the other that gain nothing, and no shorter step will. */
const restarts_idle_max = 2;
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
  const dual = new DualFunction(models, counts, start, evaluations_max);
  const { best } = dual;
  const at = start.slice();
  const gradient = new Float64Array(types);
  if (dual.evaluate(at, gradient) === Number.POSITIVE_INFINITY)
    return { ...best, bound: Number.POSITIVE_INFINITY };
  if (start.every((price) => price === 0)) {
    // Nothing is scarce even for nothing: no prices give more.
    if (gradient.every((scarce) => scarce <= 0)) return best;
    // Where all is free, models are indifferent and every direction looks bad: begin where prices matter.
    goWherePricesMatter(dual, at, gradient, scale);
  }
  const space = new StretchedSpace(types);
  let step = 0.25;
  let restarts_idle = 0;
  while (!dual.spent && restarts_idle < restarts_idle_max) {
    const before = best.bound;
    climb(dual, space, { at, gradient, scale, first_step: step });
    restarts_idle = gained(before, best.bound) ? 0 : restarts_idle + 1;
    step *= shorter;
    at.set(best.prices);
    if (!dual.spent) dual.evaluate(at, gradient);
  }
  return best;
}

/** The bound as a function of prices, and the best that was seen of it. */
class DualFunction {
  readonly best: PriceSearch;
  readonly #models: readonly PricedModel[];
  readonly #counts: Float64Array;
  readonly #clipped: Float64Array;
  readonly #evaluations_max: number;

  constructor(
    models: readonly PricedModel[],
    counts: Float64Array,
    start: Float64Array,
    evaluations_max: number,
  ) {
    this.best = { prices: start.slice(), bound: Number.NEGATIVE_INFINITY, evaluations: 0 };
    this.#models = models;
    this.#counts = counts;
    this.#clipped = new Float64Array(counts.length);
    this.#evaluations_max = evaluations_max;
  }

  /** Whether it was asked as often as it may be. */
  get spent(): boolean {
    return this.best.evaluations >= this.#evaluations_max;
  }

  /**
   * @param gradient is set to the supergradient
   * @returns the bound at `prices`, negative prices taken as zero at a penalty
   */
  evaluate(prices: Float64Array, gradient: Float64Array): number {
    const { best } = this;
    const clipped = this.#clipped;
    const counts = this.#counts;
    const types = counts.length;
    best.evaluations++;
    let bound = 0;
    let penalty = 0;
    gradient.fill(0);
    for (let type = 0; type < types; type++) clipped[type] = Math.max(0, prices[type]!);
    for (const model of this.#models) {
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
  }
}

/** Moves `at` from zero along the scale while the bound rises; the scale is made to reach that far. */
function goWherePricesMatter(
  dual: DualFunction,
  at: Float64Array,
  gradient: Float64Array,
  scale: Float64Array,
): void {
  let highest = Number.NEGATIVE_INFINITY;
  for (let far = 1 / farther; far < far_max && !dual.spent; far *= farther) {
    const bound = dual.evaluate(
      scale.map((typical) => far * typical),
      gradient,
    );
    if (bound <= highest) break;
    highest = bound;
    for (let type = 0; type < at.length; type++) at[type] = far * scale[type]!;
  }
  dual.evaluate(at, gradient);
  for (let type = 0; type < at.length; type++) scale[type] = Math.max(scale[type]!, at[type]!);
}

/** The matrix B of the r-algorithm: steps go along B Bᵀ g, and B is stretched across each ridge. */
class StretchedSpace {
  readonly #types: number;
  readonly #space: Float64Array;
  readonly #inner: Float64Array;

  constructor(types: number) {
    this.#types = types;
    this.#space = new Float64Array(types * types);
    this.#inner = new Float64Array(types);
  }

  /** Round again, with the scale as its axes. */
  reset(scale: Float64Array): void {
    this.#space.fill(0);
    for (let type = 0; type < this.#types; type++) this.#space[type * this.#types + type] = scale[type]!;
  }

  /** @returns false where there is no way up */
  direct(gradient: Float64Array, move: Float64Array): boolean {
    const types = this.#types;
    const space = this.#space;
    const inner = this.#inner;
    let length = 0;
    for (let column = 0; column < types; column++) {
      let sum = 0;
      for (let row = 0; row < types; row++) sum += space[row * types + column]! * gradient[row]!;
      inner[column] = sum;
      length += sum * sum;
    }
    length = Math.sqrt(length);
    if (length < 1e-12) return false;
    for (let row = 0; row < types; row++) {
      let sum = 0;
      for (let column = 0; column < types; column++) sum += space[row * types + column]! * inner[column]!;
      move[row] = sum / length;
    }
    return true;
  }

  /** Stretches along the change of the gradient, seen in the stretched space. */
  stretch(gradient: Float64Array, previous: Float64Array): void {
    const types = this.#types;
    const space = this.#space;
    const inner = this.#inner;
    let norm = 0;
    for (let column = 0; column < types; column++) {
      let sum = 0;
      for (let row = 0; row < types; row++)
        sum += space[row * types + column]! * (gradient[row]! - previous[row]!);
      inner[column] = sum;
      norm += sum * sum;
    }
    if (norm <= 1e-18) return;
    norm = Math.sqrt(norm);
    for (let row = 0; row < types; row++) {
      let along = 0;
      for (let column = 0; column < types; column++)
        along += (space[row * types + column]! * inner[column]!) / norm;
      for (let column = 0; column < types; column++)
        space[row * types + column]! += ((1 / stretch - 1) * along * inner[column]!) / norm;
    }
  }
}

/** Climbs from `at` until the bound gains no more; `at` and `gradient` are where it ended. */
function climb(
  dual: DualFunction,
  space: StretchedSpace,
  {
    at,
    gradient,
    scale,
    first_step,
  }: { at: Float64Array; gradient: Float64Array; scale: Float64Array; first_step: number },
): void {
  const types = at.length;
  const previous = new Float64Array(types);
  const move = new Float64Array(types);
  space.reset(scale);
  let step = first_step;
  let idle = 0;
  while (!dual.spent && idle < patience) {
    const before = dual.best.bound;
    if (!space.direct(gradient, move)) break;
    previous.set(gradient);
    let steps = 0;
    for (;;) {
      for (let type = 0; type < types; type++) at[type]! += step * move[type]!;
      dual.evaluate(at, gradient);
      steps++;
      let ascent = 0;
      for (let type = 0; type < types; type++) ascent += gradient[type]! * move[type]!;
      if (ascent <= 0 || dual.spent) break;
      if (steps >= steps_before_longer) step *= 1.5;
    }
    if (steps === 1) step *= 0.9;
    space.stretch(gradient, previous);
    idle = gained(before, dual.best.bound) ? 0 : idle + 1;
  }
}

function gained(before: number, after: number): boolean {
  return after - before > gain_min * Math.abs(after);
}
