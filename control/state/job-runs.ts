/** What snapshots of a job tell of its runs, and the records that are kept of them. */
import type { JobRecord } from '../../spec/job-record.ts';
import { type PlannedLaunch, unitsOfJob } from '../../spec/plan.ts';
import type { DeploymentState } from './deployment-state.ts';
import type { JobSnapshot } from './job-snapshot.ts';
import { joinedJob } from './joined-job-id.ts';
import type { LaunchRecord } from './launch-record.ts';

/** One run of a job: from its start to its end, or to where it goes back into the queue. */
export type JobRun = Pick<
  JobRecord,
  'state' | 'start_ms' | 'end_ms' | 'end_seen' | 'end_limit_ms' | 'account' | 'nodes'
>;

/** The scheduler's clock and ours may differ so much, ms. */
export const clockDoubt_ms = 120_000;

/** What is known of a run that was going on when it was last looked at. */
export type GoingRun = Pick<JobSnapshot, 'start_time_ms' | 'end_time_limit_ms' | 'account' | 'nodes'>;

/**
 * Runs of which a look at a job has news, the earliest first. One that was going on and is not any more ended at some
 * moment since: no later than now, than the start of the next one, and than its time limit.
 *
 *   before     now                            news
 *   waits      runs since t1                  t1 …
 *   runs, t1   waits, or runs since t2        t1 – seen now or at t2;  t2 …
 *   runs, t1   ended                          t1 – as the scheduler says, else seen now
 *
 * @param before what was going on when it was last looked at; absent: nothing
 */
export function runsBetween(before: GoingRun | undefined, now: JobSnapshot, now_ms: number): JobRun[] {
  const earlier_ms = before?.start_time_ms;
  const over = now.phase === 'ended' || now.phase === 'unknown';
  const start_ms = startOf(now, earlier_ms);
  const runs: JobRun[] = [];
  if (before && earlier_ms !== undefined && earlier_ms !== start_ms) {
    const next_ms = start_ms !== undefined && start_ms > earlier_ms ? start_ms : now_ms;
    const end_ms = seenEnd_ms(earlier_ms, Math.min(now_ms, next_ms), before);
    runs.push({ ...factsOf(before), state: 'REQUEUED', start_ms: earlier_ms, end_ms, end_seen: true });
  }
  if (start_ms === undefined) return runs;
  const told = { ...before, ...definedIn(now) };
  const run: JobRun = { ...factsOf(told), state: now.state, start_ms };
  if (!over) return [...runs, { ...run, end_limit_ms: now.end_time_limit_ms }];
  if (now.ended_at_ms === undefined)
    return [...runs, { ...run, end_ms: seenEnd_ms(start_ms, now_ms, told), end_seen: true }];
  // Cancelled before it started: Slurm calls the moment of that its start and its end.
  return now.ended_at_ms <= start_ms && earlier_ms !== start_ms
    ? runs
    : [...runs, { ...run, end_ms: now.ended_at_ms }];
}

/** When the run began that a job is in, or ended with. */
function startOf({ phase, start_time_ms }: JobSnapshot, earlier_ms: number | undefined): number | undefined {
  if (phase === 'pending') return undefined;
  // While a job that was put back still ends, Slurm tells when it expects the next run to begin.
  if (phase === 'completing') return earlier_ms;
  return start_time_ms ?? (phase === 'running' ? undefined : earlier_ms);
}

function seenEnd_ms(start_ms: number, seen_ms: number, { end_time_limit_ms = seen_ms }: GoingRun): number {
  return Math.max(start_ms, Math.min(seen_ms, end_time_limit_ms));
}

function factsOf({ account, nodes }: GoingRun): Pick<JobRun, 'account' | 'nodes'> {
  return { account, nodes };
}

function definedIn({ account, nodes, end_time_limit_ms }: JobSnapshot): GoingRun {
  return Object.fromEntries(
    Object.entries({ account, nodes, end_time_limit_ms }).filter(([, value]) => value !== undefined),
  );
}

/** A run that was going on by what was written down of its job. */
export function goingRun(last: JobSnapshot | undefined): GoingRun | undefined {
  return last?.phase === 'running' || last?.phase === 'completing' ? last : undefined;
}

/** Records of runs of a launch. None of what is no job of a scheduler: sessions there have no job to be joined by. */
export function jobRecords(
  { name, site }: Pick<DeploymentState, 'name' | 'site'>,
  { launch_id, job_id, planned, last }: LaunchRecord,
  now: JobSnapshot,
  runs: readonly JobRun[],
): JobRecord[] {
  const joined = job_id !== undefined && joinedJob(job_id) !== undefined;
  // On a joined node it runs in the job of somebody else, whose number only a run that goes on tells.
  const session_job_id = joined ? (now.job_number ?? last?.job_number) : job_id;
  if (session_job_id === undefined || session_job_id === '') return [];
  const record: Omit<JobRecord, keyof JobRun> = {
    format: 1,
    site,
    job_id: session_job_id,
    launch_id,
    deployment: name,
    models: [...new Set(unitsOfJob(planned).map(({ model }) => model.name))],
    tier: planned.tier,
    node_kind: planned.node_kind,
    devices: devicesOf(planned),
    device_model: planned.devices_per_node.model,
  };
  return runs.map((run) => ({ ...record, ...run }));
}

/** Of all nodes of a launch; of CPUs, the shares of cores that its units count by. */
function devicesOf(planned: PlannedLaunch): number {
  const { devices_per_node, node_count } = planned;
  const { kind, count } = devices_per_node;
  const units = unitsOfJob(planned);
  const per_node =
    kind === 'cpu' ? Math.max(1, ...units.map((unit) => unit.first_device + unit.device_count)) : count;
  return node_count * Math.max(1, per_node);
}
