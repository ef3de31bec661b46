/** From the state of a deployment and what was seen of it to what the decision of keeping is asked. */
import type { KeptLaunch } from '../../solver/keeping/keep.ts';
import { isLent, unitsOfJob } from '../../spec/plan.ts';
import { type DeploymentState, gpusOf } from '../state/deployment-state.ts';
import { isJoinedKind } from '../state/joined-nodes.ts';
import type { LaunchRecord } from '../state/launch-record.ts';
import type { LaunchStatus } from './decide.ts';

export function keptLaunches(
  state: DeploymentState,
  statuses: ReadonlyMap<string, LaunchStatus>,
): KeptLaunch[] {
  return state.launches
    .filter((launch) => !launch.planned.scavenged)
    .map((launch) => keptLaunch(launch, statuses.get(launch.launch_id)));
}

export function allServe(launch: LaunchRecord, status: LaunchStatus | undefined): boolean {
  const serving = new Set(status?.serving_units ?? []);
  return launch.phase === 'submitted' && unitsOfJob(launch.planned).every(({ unit }) => serving.has(unit));
}

function keptLaunch(launch: LaunchRecord, status: LaunchStatus | undefined): KeptLaunch {
  const job = launch.phase === 'ended' ? launch.last : (status?.job ?? launch.last);
  // A joined node goes with its allocation: a successor could only take the place of its predecessor there. Nodes that
  // are lent go when they go, and the rest of their pipeline needs no successor for that.
  const isRenewed = !isJoinedKind(launch.planned.node_kind) && !isLent(launch.planned);
  return {
    launch_id: launch.launch_id,
    gpu_count: gpusOf(launch.planned),
    phase: launch.phase === 'ended' ? 'ended' : job?.phase === 'running' ? 'running' : 'waiting',
    // One that was given up is there for what it used: nothing more is done about it.
    superseded: launch.superseded || launch.given_up !== undefined,
    serving: allServe(launch, status),
    served_at_ms: launch.served_at_ms,
    submitted_at_ms: launch.submitting_since_ms,
    started_at_ms: job?.start_time_ms,
    end_time_limit_ms: isRenewed ? job?.end_time_limit_ms : undefined,
    ended_at_ms: launch.ended_at_ms,
    end_state: launch.phase === 'ended' && job ? (job.reason ?? job.state) : undefined,
    tries: launch.tries ?? 0,
  };
}
