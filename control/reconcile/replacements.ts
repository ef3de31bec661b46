/**
 * A launch that waits in the queue may be given another place. It keeps its own until Slurm has taken all the launches
 * that are to replace it: where one is refused, it goes on waiting as if nothing had been tried. Pure.
 */
import { type DeploymentState, replaceLaunches } from '../state/deployment-state.ts';
import type { JobPhase } from '../state/job-snapshot.ts';
import type { LaunchRecord } from '../state/launch-record.ts';
import { superseded, tookPlace } from '../state/launch-transitions.ts';

/**
 * Whether the launch that a replacement is for still waits; where it runs or is gone, a replacement only costs a job.
 */
export function isOfUse(
  { instead_of }: LaunchRecord,
  state: DeploymentState,
  jobPhase: (launch: LaunchRecord) => JobPhase | undefined,
): boolean {
  const before = state.launches.find(({ launch_id }) => launch_id === instead_of);
  return before !== undefined && waits(before) && jobPhase(before) === 'pending';
}

/** After news of a launch: replacements take the place, or are given up, all of one place at once. */
export function settleReplacements(state: DeploymentState): DeploymentState {
  const trying = state.launches.filter((launch) => launch.instead_of !== undefined && !launch.superseded);
  const settled: LaunchRecord[] = [];
  for (const id of new Set(trying.map(({ instead_of }) => instead_of))) {
    const replacements = trying.filter(({ instead_of }) => instead_of === id);
    const before = state.launches.find(({ launch_id }) => launch_id === id);
    const taken = replacements.every(({ phase }) => phase === 'submitted');
    if (taken && before && waits(before)) settled.push(superseded(before), ...replacements.map(tookPlace));
    else if (taken || replacements.some(({ phase }) => phase === 'ended'))
      settled.push(...replacements.map(superseded));
  }
  return settled.length === 0 ? state : replaceLaunches(state, settled);
}

function waits(launch: LaunchRecord): boolean {
  return !launch.superseded && launch.phase === 'submitted' && launch.cancel_requested_ms === undefined;
}
