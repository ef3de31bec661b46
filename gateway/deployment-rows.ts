import type { DeploymentRow, JobRow } from '../spec/deployment-row.ts';
import type { DeploymentFacts } from './deployment-facts.ts';

/** Jobs of a deployment that ended and are still told of. Lower: less to read; higher: a longer past. */
const endedJobs_max = 5;

/** What somebody is told of deployments: of their models, those that pass. */
export function deploymentRows(
  states: readonly DeploymentFacts[],
  passes: (model: string) => boolean,
): DeploymentRow[] {
  return states.map(({ name, desired, spec, scaled, launches }) => {
    const ended = launches.filter(({ phase }) => phase === 'ended');
    const told = new Set(ended.slice(-endedJobs_max));
    return {
      name,
      desired,
      models: spec.models
        .filter(({ name, aliases }) => [name, ...aliases].some(passes))
        .map((model) => {
          const row: DeploymentRow['models'][number] = { ...model };
          const { asleep_since_ms, wake_s } = scaled?.[model.name] ?? {};
          if (asleep_since_ms !== undefined) row.asleep_since_ms = asleep_since_ms;
          if (wake_s !== undefined) row.wake_s = wake_s;
          return row;
        }),
      jobs: launches.filter((launch) => launch.phase !== 'ended' || told.has(launch)).map(jobRow),
    };
  });
}

/** Fields that are not known are left out by JSON. */
function jobRow(launch: DeploymentFacts['launches'][number]): JobRow {
  const { last } = launch;
  const row: { [Field in keyof JobRow]: JobRow[Field] | undefined } = {
    phase: launch.phase,
    superseded: launch.superseded,
    job_id: launch.job_id,
    where: launch.where,
    state: last?.state,
    waits_for: last?.pending?.explanation,
    pending_reason: last?.pending?.reason,
    submitted_at_ms: launch.submitting_since_ms,
    estimated_start_ms: last?.estimated_start_ms,
    start_time_ms: last?.start_time_ms,
    end_time_limit_ms: last?.end_time_limit_ms,
    ended_at_ms: launch.ended_at_ms,
    nodes: last?.nodes,
    end_reason: launch.phase === 'ended' ? last?.reason : undefined,
  };
  return row as JobRow;
}
