/**
 * Patterns: whole combinations of one model's options, seen only as devices by type and a cost. With good
 * prices and a good solution few are worth looking at: one whose reduced cost (what it costs at these
 * prices above the model's cheapest) exceeds the gap between solution and bound is in no better solution.
 */
import type { PricedModel } from './priced-model.ts';

export interface ModelPatterns {
  count: number;
  /** Per pattern `types + 1` numbers: the cost, then the devices by type. */
  data: Float64Array;
  /** Grouped options by pattern and type, -1 for none. */
  options: Int32Array;
}

export interface PatternLimits {
  /** Patterns are listed whose reduced cost is at most this. */
  slack: number;
  /** Patterns listed at most, of all models together. */
  patterns_max: number;
  /** Asked now and then; true ends the listing. */
  shouldStop?: () => boolean;
}

/** So many patterns are listed between two questions whether to stop. */
const patterns_before_asking = 4096;

/**
 * All patterns of every model within `slack` of the model's cheapest at `prices`, those left out that
 * another one beats in cost and in devices of every type; cheapest at these prices first.
 * @returns undefined where there are more than `patterns_max` in all, or where it was told to stop
 */
export function enumeratePatterns(
  models: readonly PricedModel[],
  counts: Float64Array,
  prices: Float64Array,
  { slack, patterns_max, shouldStop }: PatternLimits,
): ModelPatterns[] | undefined {
  const all: ModelPatterns[] = [];
  let total = 0;
  for (const model of models) {
    const list = new PatternList(counts.length);
    const fits = model.enumerate(prices, model.solve(prices) + slack, counts, (taken, used, cost) => {
      list.add(taken, used, cost);
      if (++total % patterns_before_asking === 0 && shouldStop?.()) return false;
      return total <= patterns_max;
    });
    if (!fits) return undefined;
    all.push(list.undominated(prices));
  }
  return all;
}

/**
 * Of every model the cheapest pattern at `prices`, and others of little reduced cost, `each_max` at most: where
 * even those that cost the same are too many to list.
 */
export function somePatterns(
  models: readonly PricedModel[],
  counts: Float64Array,
  prices: Float64Array,
  slack: number,
  each_max: number,
): ModelPatterns[] {
  return models.map((model) => {
    const list = new PatternList(counts.length);
    const least = model.solve(prices);
    const options = new Int32Array(counts.length);
    const devices = new Float64Array(counts.length);
    const cost = model.take(devices, options);
    if (devices.every((taken, type) => taken <= counts[type]!)) list.add(options, devices, cost);
    model.enumerate(prices, least + slack, counts, (taken, used, own) => {
      list.add(taken, used, own);
      return list.count < each_max;
    });
    return list.undominated(prices);
  });
}

/**
 * A pattern is compared with so many of the cheapest; nearly all that beat others are among them. Higher:
 * fewer patterns left, at a cost that grows with the square of their number.
 */
const rivals_max = 250;

/** The patterns of a model with one more, where it is not among them; and which it is. */
export function withPattern(
  patterns: ModelPatterns,
  options: Int32Array,
  devices: Float64Array,
  cost: number,
): { patterns: ModelPatterns; at: number } {
  const types = devices.length;
  const { count, data } = patterns;
  for (let at = 0; at < count; at++) {
    const same = devices.every((taken, type) => data[at * (types + 1) + 1 + type] === taken);
    if (same && data[at * (types + 1)] === cost) return { patterns, at };
  }
  const added = {
    count: count + 1,
    data: new Float64Array(data.length + types + 1),
    options: new Int32Array((count + 1) * types),
  };
  added.data.set(data);
  added.data[data.length] = cost;
  added.data.set(devices, data.length + 1);
  added.options.set(patterns.options);
  added.options.set(options, count * types);
  return { patterns: added, at: count };
}

/** Patterns of one model as they are found. */
class PatternList {
  readonly #types: number;
  readonly #costs: number[] = [];
  readonly #devices: number[] = [];
  readonly #options: number[] = [];

  constructor(types: number) {
    this.#types = types;
  }

  get count(): number {
    return this.#costs.length;
  }

  add(options: Int32Array, devices: Float64Array, cost: number): void {
    this.#costs.push(cost);
    for (let type = 0; type < this.#types; type++) {
      this.#devices.push(devices[type]!);
      this.#options.push(options[type]!);
    }
  }

  undominated(prices: Float64Array): ModelPatterns {
    return undominated(this.#costs, this.#devices, this.#options, prices);
  }
}

function undominated(
  costs: readonly number[],
  devices: readonly number[],
  options: readonly number[],
  prices: Float64Array,
): ModelPatterns {
  const types = prices.length;
  const stride = types + 1;
  const priced = costs.map((cost, pattern) => {
    let sum = cost;
    for (let type = 0; type < types; type++) sum += prices[type]! * devices[pattern * types + type]!;
    return sum;
  });
  // A pattern that beats another costs no more at any prices, so it comes first in this order.
  const order = Int32Array.from(costs, (_, index) => index).sort(
    (a, b) => priced[a]! - priced[b]! || costs[a]! - costs[b]! || a - b,
  );
  const data = new Float64Array(order.length * stride);
  const kept = new Int32Array(order.length * types);
  let count = 0;
  next: for (const pattern of order) {
    const cost = costs[pattern]!;
    check: for (let other = 0; other < Math.min(count, rivals_max); other++) {
      const at = other * stride;
      if (data[at]! > cost) continue;
      for (let type = 0; type < types; type++)
        if (data[at + 1 + type]! > devices[pattern * types + type]!) continue check;
      continue next;
    }
    data[count * stride] = cost;
    for (let type = 0; type < types; type++) {
      data[count * stride + 1 + type] = devices[pattern * types + type]!;
      kept[count * types + type] = options[pattern * types + type]!;
    }
    count++;
  }
  return { count, data: data.slice(0, count * stride), options: kept.slice(0, count * types) };
}
