/** Whether a plan that was made again is worth its moves. Pure. */

/** What is to be judged of a new plan. */
export interface ProposedPlan {
  /** Cost of what stands as it is; undefined where it cannot go on so. */
  standing_cost: number | undefined;
  /** Cost of the new plan, its moves included. */
  proposed_cost: number;
  /** Replicas that run would go. */
  leaves_running: boolean;
  /** All that is to be started finds its devices free now. */
  starts_at_once: boolean;
  /** It would, were what it replaces ended first. */
  starts_in_own_room: boolean;
}

export type ReplanVerdict =
  | {
      do: 'move';
      /** What leaves goes on until its successors serve; else it makes room for them. */
      overlap: boolean;
      gain: number | undefined;
    }
  | { do: 'stay'; because: string; gain: number | undefined };

/** Where nothing can start before something of the deployment itself has ended, a plan must save so much. */
const gain_without_room_min = 0.5;

/**
 * Replicas that serve go on until their successors do, where there is room for both; where there is none, what is saved
 * must be worth the gap.
 * @param gain_min share of the cost that must be saved at least; see `ReplanSettings`
 */
export function judgePlan(plan: ProposedPlan, gain_min: number): ReplanVerdict {
  const { standing_cost, proposed_cost, leaves_running, starts_at_once, starts_in_own_room } = plan;
  const gain =
    standing_cost === undefined ? undefined : standing_cost <= 0 ? 0 : 1 - proposed_cost / standing_cost;
  if (gain !== undefined && gain < gain_min) {
    const because =
      gain <= 0 ? 'no plan costs less' : `a new plan saves ${percent(gain)} of the cost, too little`;
    return { do: 'stay', because, gain };
  }
  if (starts_at_once || !leaves_running) return { do: 'move', overlap: true, gain };
  const least = Math.max(gain_min, gain_without_room_min);
  if (starts_in_own_room && gain !== undefined && gain >= least) return { do: 'move', overlap: false, gain };
  const saves = gain === undefined ? '' : `, which saves ${percent(gain)} of the cost`;
  return { do: 'stay', because: `there is no room for a new plan${saves}, beside what runs`, gain };
}

function percent(share: number): string {
  return `${Math.round(100 * share)} %`;
}
