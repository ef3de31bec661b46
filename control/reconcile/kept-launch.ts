/** From the state of a deployment and what was seen of it to what the decision of keeping is asked. */
import type { KeptLaunch } from '../../solver/keeping/keep.ts';
import type { DeploymentState } from '../state/deployment-state.ts';
import { isJoinedKind } from '../state/joined-nodes.ts';
import type { LaunchRecord } from '../state/launch-record.ts';
import type { LaunchStatus } from './decide.ts';

export function keptLaunches(
  state: DeploymentState,
  statuses: ReadonlyMap<string, LaunchStatus>,
): KeptLaunch[] {
  return state.launches
    .filter((launch) => launch.given_up === undefined && !launch.planned.scavenged)
    .map((launch) => keptLaunch(launch, statuses.get(launch.launch_id)));
}

export function allServe(launch: LaunchRecord, status: LaunchStatus | undefined): boolean {
  const serving = new Set(status?.serving_units ?? []);
  return launch.phase === 'submitted' && launch.planned.units.every(({ unit }) => serving.has(unit));
}

function keptLaunch(launch: LaunchRecord, status: LaunchStatus | undefined): KeptLaunch {
  const job = launch.phase === 'ended' ? launch.last : (status?.job ?? launch.last);
  const { devices_per_node, node_count } = launch.planned;
  const optional = <K extends string>(key: K, value: number | undefined): Partial<Record<K, number>> =>
    value === undefined ? {} : ({ [key]: value } as Record<K, number>);
  return {
    launch_id: launch.launch_id,
    gpu_count: devices_per_node.count * node_count,
    phase: launch.phase === 'ended' ? 'ended' : job?.phase === 'running' ? 'running' : 'waiting',
    superseded: launch.superseded,
    serving: allServe(launch, status),
    ...optional('served_at_ms', launch.served_at_ms),
    ...optional('submitted_at_ms', launch.submitting_since_ms),
    ...optional('started_at_ms', job?.start_time_ms),
    // A joined node goes with its allocation: a successor could only take the place of its predecessor there.
    ...(isJoinedKind(launch.planned.node_kind) ? {} : optional('end_time_limit_ms', job?.end_time_limit_ms)),
    ...optional('ended_at_ms', launch.ended_at_ms),
    ...(launch.phase === 'ended' && job ? { end_state: job.reason ?? job.state } : {}),
    tries: launch.tries ?? 0,
  };
}
