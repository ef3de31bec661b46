/** `usage jobs`: what jobs had of devices, beside what was computed on them. */
import { dirname } from 'node:path';
import { type JobUsageQuery, joinedUsageDimensions, joinJobs, readJobRecords } from '../ledger/index.ts';
import { parseJobNumber } from '../slurm/array-tasks.ts';
import { HpcserveError } from '../spec/errors/error.ts';
import { type JobRecord, runKey } from '../spec/job-record.ts';
import type { JobUsageRow } from '../spec/job-usage.ts';
import { jobsFolderBeside } from '../spec/state-layout.ts';
import type { UsageRow } from '../spec/usage.ts';
import type { SlurmRunner } from './runner/slurm-runner.ts';
import { clockDoubt_ms, type GoingRun, runsBetween } from './state/job-runs.ts';
import { sumUsage } from './state/ledgers.ts';

/** Jobs that the scheduler is asked for at most. Lower: a shorter question; higher: more is known of an old past. */
const asked_max = 500;

type JobSource = Pick<SlurmRunner, 'poll' | 'accountedRuns'>;

export interface JobUsage {
  rows: JobUsageRow[];
  /** Why what is said of jobs that run may be old. */
  problem?: string;
}

/**
 * @param slurm asked for jobs that run, and for those that nobody kept a record of; absent: records alone count
 * @throws as `sumUsage`
 */
export async function jobUsage(
  ledgers: readonly string[],
  site: string | undefined,
  slurm: JobSource | undefined,
  query: JobUsageQuery,
): Promise<JobUsage> {
  const { since_ms, until_ms, now_ms } = query;
  const usage = sumUsage(ledgers, { group_by: joinedUsageDimensions, since_ms, until_ms });
  const records = await readJobRecords(jobFoldersOf(ledgers));
  if (!slurm || site === undefined) return { rows: joinJobs(usage, records, query) };
  try {
    const news = await newsOfJobs(usage, records, site, slurm, now_ms);
    return { rows: joinJobs(usage, withNews(records, news), query) };
  } catch (error) {
    if (!(error instanceof HpcserveError)) throw error;
    const problem = `jobs are shown as last known: ${[error.message, ...error.because].join(': ')}`;
    return { rows: joinJobs(usage, records, query), problem };
  }
}

/** Where records of the jobs lie that these ledgers know. */
export function jobFoldersOf(ledgers: readonly string[]): string[] {
  return [...new Set(ledgers.map((path) => jobsFolderBeside(dirname(path))))];
}

/** What has become of jobs that ran when they were last looked at, and what is known of those without a record. */
async function newsOfJobs(
  usage: readonly UsageRow[],
  records: readonly JobRecord[],
  site: string,
  slurm: JobSource,
  now_ms: number,
): Promise<JobRecord[]> {
  const here = records.filter((record) => record.site === site);
  const recorded = new Set(here.map(({ job_id }) => job_id));
  const going = new Map(here.filter(({ end_ms }) => end_ms === undefined).map((run) => [run.job_id, run]));
  const unrecorded = usage.flatMap(({ group }) =>
    group.site === site && !recorded.has(group.job!) ? group.job! : [],
  );
  const asked = numbers([...going.keys(), ...unrecorded]);
  const snapshots = asked.length > 0 ? await slurm.poll(asked.map((job_id) => ({ job_id }))) : new Map();
  const news = [...snapshots].flatMap(([job_id, now]) => {
    const before = going.get(job_id);
    const runs = runsBetween(before && goingRunOf(before), now, now_ms);
    return runs.map((run): JobRecord => ({ format: 1, site, job_id, models: [], ...before, ...run }));
  });
  return [...news, ...(await accountedEnds(withNews(here, news), slurm))];
}

/** Accounting hears of an end later than who follows a job, and tells of runs that nobody saw. */
async function accountedEnds(records: readonly JobRecord[], slurm: JobSource): Promise<JobRecord[]> {
  const doubtful = records.filter(({ end_seen }) => end_seen);
  const asked = numbers(doubtful.map(({ job_id }) => job_id));
  if (asked.length === 0) return [];
  const accounted = await slurm.accountedRuns(asked);
  return [...accounted].flatMap(([job_id, runs]) => {
    const [first] = records.filter((record) => record.job_id === job_id);
    const since_ms = first!.start_ms - clockDoubt_ms;
    const { end_seen: _, ...known } = first!;
    return runs.flatMap((run) => (run.start_ms < since_ms ? [] : { ...known, ...run }));
  });
}

/** Those that a scheduler can be asked for, the last ones of too many. */
function numbers(job_ids: readonly string[]): string[] {
  return [...new Set(job_ids)].filter((job_id) => parseJobNumber(job_id)).slice(-asked_max);
}

function goingRunOf({ start_ms, end_limit_ms, account, nodes }: JobRecord): GoingRun {
  return { start_time_ms: start_ms, end_time_limit_ms: end_limit_ms, account, nodes };
}

/** The later word on a run counts. */
function withNews(records: readonly JobRecord[], news: readonly JobRecord[]): JobRecord[] {
  const runs = new Map([...records, ...news].map((record) => [runKey(record), record]));
  return [...runs.values()].sort((a, b) => a.start_ms - b.start_ms);
}
