import { type AssignmentProblem, sharesOf } from './problem.ts';

/**
 * Indices of the options worth looking at, by model: of one (type, share), only those that no other beats
 * in both devices and cost, and none that needs more devices than there are. Ascending devices.
 */
export function paretoOptions(problem: AssignmentProblem): number[][] {
  return problem.options.map((options, model) => {
    const order = options
      .map((_, index) => index)
      .sort((a, b) => options[a]!.devices - options[b]!.devices || options[a]!.cost - options[b]!.cost);
    const cheapest = new Map<number, number>();
    return order.filter((index) => {
      const { type, share, devices, cost } = options[index]!;
      if (devices > problem.counts[type]!) return false;
      const key = type * (sharesOf(problem, model) + 1) + share;
      if (cost >= (cheapest.get(key) ?? Number.POSITIVE_INFINITY)) return false;
      cheapest.set(key, cost);
      return true;
    });
  });
}
