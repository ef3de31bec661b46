/**
 * A launch that waits in the queue may be given another place. It keeps its own until Slurm has taken all the launches that
 * are to stand in for it: where one is refused, it goes on waiting as if nothing had been tried. Pure.
 */

import type { JobPhase } from '../runner/job-runner.ts';
import type { DeploymentState, LaunchRecord } from '../state/deployment-state.ts';

/** Whether the launch it stands in for still waits; where not, there is nothing to be gained by it. */
export function isOfUse(
  { instead_of }: LaunchRecord,
  state: DeploymentState,
  jobPhase: (launch: LaunchRecord) => JobPhase | undefined,
): boolean {
  const before = state.launches.find(({ launch_id }) => launch_id === instead_of);
  return before !== undefined && waits(before) && jobPhase(before) === 'pending';
}

/** After news of a launch: those that stand in take the place, or are given up, all at once. */
export function settleStandIns(state: DeploymentState): void {
  const trying = state.launches.filter((launch) => launch.instead_of !== undefined && !launch.superseded);
  for (const id of new Set(trying.map(({ instead_of }) => instead_of))) {
    const standIns = trying.filter(({ instead_of }) => instead_of === id);
    const before = state.launches.find(({ launch_id }) => launch_id === id);
    const taken = standIns.every(({ phase }) => phase === 'submitted');
    if (taken && before && waits(before)) {
      before.superseded = true;
      for (const launch of standIns) delete launch.instead_of;
    } else if (taken || standIns.some(({ phase }) => phase === 'ended'))
      for (const launch of standIns) launch.superseded = true;
  }
}

function waits(launch: LaunchRecord): boolean {
  return !launch.superseded && launch.phase === 'submitted' && launch.cancel_requested_ms === undefined;
}
