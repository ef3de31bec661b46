import type { DeploymentFacts } from './deployment-facts.ts';

/**
 * So long after a replica was lost, any job of its deployment may bring one. Control finds out at its next look, and
 * submits another or sees that Slurm has put the job back; then Slurm looks at its queue. Lower: streams are given up
 * whose job was about to start; higher: they are kept waiting where nothing comes.
 */
const noticed_s = 60;
/** A job tells of its replica within this time of its start. Higher: slow filesystems are waited for. */
const announced_s = 120;

/**
 * In how many seconds a job may bring a replica that nobody has told of yet; 0: at any moment.
 * @param deployments that are to serve the model
 * @param lost_for_s how long it has had none
 * @returns undefined where no job is expected to
 */
export function jobComesIn_s(
  deployments: readonly Pick<DeploymentFacts, 'launches'>[],
  { now_ms, lost_for_s }: { now_ms: number; lost_for_s: number },
): number | undefined {
  const times_s = deployments.flatMap(({ launches }) =>
    launches.flatMap((launch) => launchComesIn_s(launch, now_ms, lost_for_s < noticed_s) ?? []),
  );
  return times_s.length === 0 ? undefined : Math.min(...times_s);
}

function launchComesIn_s(
  { superseded, phase, submitting_since_ms, last }: DeploymentFacts['launches'][number],
  now_ms: number,
  lostJustNow: boolean,
): number | undefined {
  if (superseded || phase === 'ended') return undefined;
  if (last?.pending && last.estimated_start_ms !== undefined)
    return Math.max(0, (last.estimated_start_ms - now_ms) / 1000);
  if (lostJustNow || phase !== 'submitted') return 0;
  const [since_ms, within_s] = last?.pending
    ? [submitting_since_ms, noticed_s]
    : [last?.start_time_ms, announced_s];
  return since_ms !== undefined && now_ms - since_ms < 1000 * within_s ? 0 : undefined;
}
