import type { AssignmentChoice, AssignmentProblem } from './problem.ts';

/** Cost of a choice, undefined where it breaks a rule. Shares nothing with the solver. */
export function choiceCost(problem: AssignmentProblem, choice: AssignmentChoice): number | undefined {
  const left = [...problem.counts];
  let cost = 0;
  for (const [model, indices] of choice.entries()) {
    const types = new Set<number>();
    let share = 0;
    for (const index of indices) {
      const option = problem.options[model]?.[index];
      if (option === undefined || types.has(option.type)) return undefined;
      types.add(option.type);
      share += option.share;
      cost += option.cost;
      left[option.type]! -= option.devices;
    }
    const whole = typeof problem.shares === 'number' ? problem.shares : problem.shares[model];
    if (share !== whole) return undefined;
  }
  return choice.length === problem.options.length && left.every((count) => count >= 0) ? cost : undefined;
}
