/** When the search for a better plan ends: at its deadline, though not before there is a plan at all. */
import type { AllocationLimits } from '../../solver/placement/allocation.ts';

/** A search that has found nothing yet goes on for so long, ms: a plan with a stated gap is worth it. */
const first_plan_ms = 1000;

/**
 * The clock starts with the first question, so that looking at model files takes nothing from the search.
 * @param search_ms how long to look; 0: the first plan found is taken.
 */
export function searchDeadline(search_ms: number, now_ms: () => number): Required<AllocationLimits> {
  let started_ms: number | undefined;
  let found = false;
  return {
    shouldStop: () => {
      const now = now_ms();
      started_ms ??= now;
      return now - started_ms >= search_ms + (found ? 0 : first_plan_ms);
    },
    onProgress: ({ cost }) => {
      found ||= cost !== undefined;
    },
  };
}
