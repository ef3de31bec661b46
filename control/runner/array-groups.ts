/** Which launches Slurm can be given as one job array: jobs of one node each that ask it for the same. */
import type { PlannedLaunch } from '../../spec/plan.ts';
import { digestOf } from '../state/digest.ts';

/** Fewer are submitted one by one: each then has a script of its own to look at, and the scheduler does not feel it. */
const arrayTasks_min = 4;

/**
 * Groups of indexes into `planned`, in order.
 * @param tasks_max of one array; more are several of about the same size
 */
export function arrayGroups(planned: readonly PlannedLaunch[], tasks_max: number): number[][] {
  if (tasks_max < arrayTasks_min) return [];
  const alike = new Map<string, number[]>();
  for (const [index, { units: _, ...request }] of planned.entries()) {
    // What runs on idle nodes is made to measure for a gap; what needs several nodes or jobs comes and goes by itself.
    if (request.scavenged || request.node_count > 1 || request.part) continue;
    const key = digestOf(request);
    alike.set(key, [...(alike.get(key) ?? []), index]);
  }
  return [...alike.values()]
    .filter((indexes) => indexes.length >= arrayTasks_min)
    .flatMap((indexes) => {
      const parts = Math.max(1, Math.ceil(indexes.length / tasks_max));
      const size = Math.ceil(indexes.length / parts);
      return Array.from({ length: parts }, (_, at) => indexes.slice(at * size, (at + 1) * size));
    });
}
