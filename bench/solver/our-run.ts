/** One run of our solver, told by how it went: in time of the clock and of the CPU, which differ on a busy machine. */
import type { AssignmentProblem } from '../../solver/assignment/problem.ts';
import { type SolveResult, solveAssignment } from '../../solver/assignment/solve.ts';
import { recomputeCost } from './recompute.ts';

export interface Seconds {
  cpu_s: number;
  wall_s: number;
}

export interface OurRun {
  status: SolveResult['status'];
  /** Recomputed from the rules; undefined where there is no plan. */
  cost: number | undefined;
  bound: number;
  nodes: number;
  proved: boolean;
  solve: Seconds;
  /** Until the first plan, and until the last better one. */
  first: Seconds | undefined;
  best: Seconds | undefined;
  /** Cost held at one second of the clock. */
  cost_at_1_s: number | undefined;
}

/** A stop watch over this process. */
function stopWatch(): () => Seconds {
  const start = performance.now();
  const before = process.cpuUsage();
  return () => {
    const { user, system } = process.cpuUsage(before);
    return { cpu_s: (user + system) / 1e6, wall_s: (performance.now() - start) / 1000 };
  };
}

/** @param limit_s when it is stopped; by `clock` */
export function runOurs(
  problem: AssignmentProblem,
  limit_s: number,
  clock: keyof Seconds = 'wall_s',
): OurRun {
  const elapsed = stopWatch();
  let first: Seconds | undefined;
  let best: Seconds | undefined;
  let held: number | undefined;
  let cost_at_1_s: number | undefined;
  const result = solveAssignment(problem, {
    shouldStop: () => elapsed()[clock] > limit_s,
    onProgress: ({ cost }) => {
      if (cost === held) return;
      held = cost;
      best = elapsed();
      first ??= best;
      if (best.wall_s <= 1) cost_at_1_s = cost;
    },
  });
  return {
    status: result.status,
    cost: result.choice && recomputeCost(problem, result.choice),
    bound: result.bound,
    nodes: result.nodes,
    proved: result.status === 'optimal',
    solve: elapsed(),
    first,
    best,
    cost_at_1_s,
  };
}

/** How far a cost is above what it is held against, as a share of that; infinite where there is none. */
export function gapTo(reference: number, cost: number | undefined): number {
  if (cost === undefined) return Number.POSITIVE_INFINITY;
  return cost === reference ? 0 : (cost - reference) / Math.max(1, Math.abs(reference));
}
