/** Why a launch went wrong, from everything that speaks of it: the job, its agents, the last lines of its logs. */
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { HpcserveError } from '../../spec/errors/error.ts';
import { unitsOfJob } from '../../spec/plan.ts';
import { launchFiles } from '../../spec/state-layout.ts';
import { describeJobEnd } from '../runner/agent-end.ts';
import type { DeploymentState } from '../state/deployment-state.ts';
import type { DeploymentStore } from '../state/deployment-store.ts';
import type { LaunchRecord } from '../state/launch-record.ts';
import { explainFromLog, logFilesOf } from '../state/log-files.ts';
import { unitErrors } from './assess.ts';
import type { LaunchObservation } from './observe.ts';

export function jobLog(state: DeploymentState, store: DeploymentStore, launchId: string): string {
  return join(store.launchFolder(state.name, launchId), launchFiles.log);
}

/** The error to show for a launch that ended, or whose units all failed. */
export function diagnose(
  state: DeploymentState,
  store: DeploymentStore,
  launch: LaunchRecord,
  status: LaunchObservation | undefined,
): HpcserveError {
  const job = launch.phase === 'ended' ? launch.last : status?.job;
  const because: string[] = [];
  if (job && job.phase !== 'running' && job.phase !== 'pending')
    because.push(`job ${job.job_id || launch.launch_id} ended: ${describeJobEnd(job)}`);
  const found = unitErrors(status?.units ?? []);
  because.push(...found);
  const agents = status?.agents ?? [];
  if (found.length === 0)
    because.push(
      ...agents.flatMap((agent) => (agent.exit_reason ? [`${agent.node}: ${agent.exit_reason}`] : [])),
    );
  const advice = (status?.units ?? []).flatMap((unit) => unit.try ?? []);
  const folder = store.launchFolder(state.name, launch.launch_id);
  const files = logFilesOf(
    folder,
    launch.launch_id,
    launch.planned.units.map((unit) => unit.unit),
  );
  const log = files[0]?.path ?? jobLog(state, store, launch.launch_id);
  const explained = explainFromLog(log);
  if (found.length === 0) advice.push(...explained.try);
  // Whoever says what is wrong has said it; the last lines of the log are for ends that nobody explains.
  if (found.length === 0) because.push(...explained.because);
  // What an engine says of itself is in the log of its unit.
  const unitLog = (status?.units ?? []).find((unit) => unit.error !== undefined && unit.log_file)?.log_file;
  because.push(`log file: ${unitLog !== undefined && existsSync(unitLog) ? unitLog : log}`);
  const models = [...new Set(unitsOfJob(launch.planned).map((unit) => unit.model.name))].join(', ');
  return new HpcserveError('E_DEPLOYMENT_FAILED', {
    what: `${models} does not serve on ${launch.planned.node_kind}`,
    because,
    try: [...new Set([...advice, `read the whole log: hpcserve logs ${state.name}`])],
    details: { launch_id: launch.launch_id, job_id: job?.job_id || undefined },
  });
}
