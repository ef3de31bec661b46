/** Why a launch went wrong, from everything that speaks of it: the job, its agents, the last lines of its logs. */
import { join } from 'node:path';
import { HpcserveError } from '../spec/errors/error.ts';
import { launchFiles } from '../spec/state-layout.ts';
import type { DeploymentState, LaunchRecord } from './deployment-state.ts';
import type { DeploymentStore } from './deployment-store.ts';
import { lastLines, logFilesOf } from './log-files.ts';
import type { LaunchObservation } from './observe.ts';

export function jobLog(state: DeploymentState, store: DeploymentStore, launchId: string): string {
  return join(store.launchFolder(state.name, launchId), launchFiles.log);
}

/** The error to show for a launch that ended, or whose units all failed. */
export function diagnose(
  state: DeploymentState,
  store: DeploymentStore,
  launch: LaunchRecord,
  sight: LaunchObservation | undefined,
): HpcserveError {
  const job = launch.phase === 'ended' ? launch.last : sight?.job;
  const because: string[] = [];
  if (job && job.phase !== 'running' && job.phase !== 'pending')
    because.push(
      `job ${job.job_id || launch.launch_id}: ${[job.state, job.exit_code === undefined ? '' : `exit code ${job.exit_code}`, job.reason ?? ''].filter(Boolean).join(', ')}`,
    );
  for (const agent of sight?.agents ?? []) {
    if (agent.error) because.push(`${agent.node}: ${[agent.error.what, ...agent.error.because].join(': ')}`);
    else if (agent.exit_reason) because.push(`${agent.node}: ${agent.exit_reason}`);
  }
  const advice = (sight?.agents ?? []).flatMap((agent) => [
    ...(agent.error?.try ?? []),
    ...agent.sessions.flatMap((session) => session.error?.try ?? []),
  ]);
  for (const unit of sight?.units ?? [])
    if (unit.error && !because.some((line) => line.includes(unit.error!)))
      because.push(`${unit.unit} on ${unit.node ?? 'its node'}: ${unit.error}`);
  const folder = store.launchFolder(state.name, launch.launch_id);
  const files = logFilesOf(
    folder,
    launch.launch_id,
    launch.planned.units.map((unit) => unit.unit),
  );
  const log = files[0]?.path ?? jobLog(state, store, launch.launch_id);
  because.push(...lastLines(log, 5).map((line) => `log: ${line}`), `log file: ${log}`);
  const models = [...new Set(launch.planned.units.map((unit) => unit.model.name))].join(', ');
  return new HpcserveError('E_DEPLOYMENT_FAILED', {
    what: `${models} does not serve on ${launch.planned.node_kind}`,
    because,
    try: [...new Set([...advice, `read the whole log: hpcserve logs ${state.name}`])],
    details: { launch_id: launch.launch_id, ...(job?.job_id ? { job_id: job.job_id } : {}) },
  });
}
