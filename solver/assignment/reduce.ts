import { type AssignmentProblem, trafficUnits } from './problem.ts';

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
      const key = type * (trafficUnits(problem, model) + 1) + share;
      if (cost >= (cheapest.get(key) ?? Number.POSITIVE_INFINITY)) return false;
      cheapest.set(key, cost);
      return true;
    });
  });
}

/**
 * Of one (type, share) the option with the fewest devices alone: with these there is a plan exactly where there is
 * one with all, and they make far fewer combinations.
 * @param kept what `paretoOptions` gave
 */
export function frugalOptions(problem: AssignmentProblem, kept: readonly (readonly number[])[]): number[][] {
  return kept.map((indices, model) => {
    const seen = new Set<number>();
    // Ascending devices: the first of its kind has the fewest.
    return indices.filter((index) => {
      const { type, share } = problem.options[model]![index]!;
      const key = type * (trafficUnits(problem, model) + 1) + share;
      return seen.has(key) ? false : seen.add(key);
    });
  });
}
