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

/**
 * All patterns of every model within `slack` of the model's cheapest at `prices`, those left out that
 * another one beats in cost and in devices of every type; cheapest at these prices first.
 * @returns undefined where there are more than `limit` in all
 */
export function enumeratePatterns(
  models: readonly PricedModel[],
  counts: Float64Array,
  prices: Float64Array,
  slack: number,
  limit: number,
): ModelPatterns[] | undefined {
  const types = counts.length;
  const all: ModelPatterns[] = [];
  let total = 0;
  for (const model of models) {
    const most = model.solve(prices) + slack;
    const costs: number[] = [];
    const devices: number[] = [];
    const options: number[] = [];
    const fits = model.enumerate(prices, most, counts, (taken, used, cost) => {
      costs.push(cost);
      for (let type = 0; type < types; type++) {
        devices.push(used[type]!);
        options.push(taken[type]!);
      }
      return ++total <= limit;
    });
    if (!fits) return undefined;
    all.push(undominated(costs, devices, options, prices));
  }
  return all;
}

/**
 * A pattern is compared with so many of the cheapest; nearly all that beat others are among them. Higher:
 * fewer patterns left, at a cost that grows with the square of their number.
 */
const rivals_max = 250;

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
