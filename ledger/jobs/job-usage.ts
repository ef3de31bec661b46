/** Joins what ledgers know of requests with what is known of the jobs that computed them. */
import type { JobRecord } from '../../spec/job-record.ts';
import type { JobDimension, JobUsageRow } from '../../spec/job-usage.ts';
import type { UsageDimension, UsageRow } from '../../spec/usage.ts';

/** By what usage is asked for that is to be joined. */
export const joinedUsageDimensions = [
  'job',
  'model',
  'account',
  'deployment',
  'tier',
  'site',
] as const satisfies UsageDimension[];

export interface JobUsageQuery {
  group_by: readonly JobDimension[];
  /** Unix ms; runs count as far as they are within. */
  since_ms?: number | undefined;
  until_ms?: number | undefined;
  /** Up to when what runs has run. */
  now_ms: number;
}

const unknown = '-';
const joules_per_kwh = 3.6e6;

/** One job: its runs, and what was charged to requests for its devices, by model. */
interface Job {
  runs: JobRecord[];
  charged: UsageRow[];
}

/** What one job, or one model's part of one, adds to its group. */
interface Part {
  group: Record<JobDimension, string>;
  charged: UsageRow[];
  /** Share of the job's time, 0 to 1. */
  share: number;
}

/**
 * Jobs with a run or a request in the time asked for, by dimensions, in their order.
 *
 * By model, allocated device-time has to be split: each model of a job has the share of it that its requests have of
 * the device-seconds that were charged; where none was charged, those it was submitted to serve have equal shares.
 *
 * @param usage of all ledgers, by `joinedUsageDimensions`
 */
export function joinJobs(
  usage: readonly UsageRow[],
  records: readonly JobRecord[],
  query: JobUsageQuery,
): JobUsageRow[] {
  const groups = new Map<string, JobGroup>();
  for (const job of jobsOf(usage, records, query)) {
    const time = timeOf(job, query);
    for (const part of query.group_by.includes('model') ? byModel(job) : [wholeOf(job)]) {
      const values = query.group_by.map((name) => part.group[name]);
      const key = JSON.stringify(values);
      const group = groups.get(key) ?? new JobGroup(query.group_by, values);
      groups.set(key, group);
      group.add(job, part, time);
    }
  }
  return [...groups.values()].sort((a, b) => compareValues(a.values, b.values)).map((group) => group.row());
}

/** Numbers of jobs by their size. */
const collator = new Intl.Collator('en', { numeric: true });
function compareValues(a: readonly string[], b: readonly string[]): number {
  for (const [index, value] of a.entries()) {
    const order = collator.compare(value, b[index]!);
    if (order !== 0) return order;
  }
  return 0;
}

function jobsOf(
  usage: readonly UsageRow[],
  records: readonly JobRecord[],
  { since_ms = 0, until_ms = Number.POSITIVE_INFINITY, now_ms }: JobUsageQuery,
): Job[] {
  const jobs = new Map<string, Job>();
  const jobAt = (site: string | undefined, job_id: string | undefined): Job => {
    const key = JSON.stringify([site, job_id]);
    const job = jobs.get(key) ?? { runs: [], charged: [] };
    jobs.set(key, job);
    return job;
  };
  for (const run of records)
    if (run.start_ms < until_ms && (run.end_ms ?? now_ms) > since_ms)
      jobAt(run.site, run.job_id).runs.push(run);
  for (const row of usage) {
    // What nobody answered was computed in no job.
    if (row.group.job === unknown && row.device_s === 0) continue;
    jobAt(row.group.site, row.group.job).charged.push(row);
  }
  return [...jobs.values()];
}

/** Seconds that it ran in the time asked for, and times its devices. */
function timeOf(
  { runs }: Job,
  { since_ms = 0, until_ms = Number.POSITIVE_INFINITY, now_ms }: JobUsageQuery,
): { walltime_s: number; allocated_s: number | undefined } {
  let walltime_ms = 0;
  let allocated_ms: number | undefined;
  for (const { start_ms, end_ms = now_ms, devices } of runs) {
    const ran_ms = Math.max(0, Math.min(end_ms, until_ms) - Math.max(start_ms, since_ms));
    walltime_ms += ran_ms;
    if (devices !== undefined) allocated_ms = (allocated_ms ?? 0) + ran_ms * devices;
  }
  return {
    walltime_s: walltime_ms / 1000,
    allocated_s: allocated_ms === undefined ? undefined : allocated_ms / 1000,
  };
}

function wholeOf(job: Job): Part {
  return { group: groupOf(job, unknown), charged: job.charged, share: 1 };
}

function byModel(job: Job): Part[] {
  const { runs, charged } = job;
  const charges = new Map<string, number>();
  for (const { group, device_s } of charged)
    charges.set(group.model!, (charges.get(group.model!) ?? 0) + device_s);
  const total_s = [...charges.values()].reduce((sum, device_s) => sum + device_s, 0);
  const submitted = new Set(runs.flatMap(({ models }) => models));
  const models = new Set([...charges.keys(), ...(total_s > 0 ? [] : submitted)]);
  if (models.size === 0) models.add(unknown);
  const sharers = submitted.size > 0 ? submitted : models;
  const equal = (model: string): number => (sharers.has(model) ? 1 / sharers.size : 0);
  return [...models].map((model) => ({
    group: groupOf(job, model),
    charged: charged.filter(({ group }) => group.model === model),
    share: total_s > 0 ? (charges.get(model) ?? 0) / total_s : equal(model),
  }));
}

/** What its records say of it, else its sessions. */
function groupOf({ runs, charged }: Job, model: string): Part['group'] {
  const run = runs.at(-1);
  const told = (name: 'job' | 'account' | 'deployment' | 'tier' | 'site'): string | undefined =>
    charged.map(({ group }) => group[name]).find((value) => value !== unknown);
  return {
    job: run?.job_id ?? told('job') ?? unknown,
    account: run?.account ?? told('account') ?? unknown,
    deployment: run?.deployment ?? told('deployment') ?? unknown,
    model,
    node_kind: run?.node_kind ?? unknown,
    tier: run?.tier ?? told('tier') ?? unknown,
    site: run?.site ?? told('site') ?? unknown,
  };
}

/** Sums over jobs with the same values of some dimensions. */
class JobGroup {
  readonly values: readonly string[];
  readonly #group_by: readonly JobDimension[];
  readonly #row: JobUsageRow;
  #allocated_s: number | undefined;
  /** Of the jobs whose allocated time is known: what is compared with it. */
  #known = { busy_s: 0, tokens: 0 };

  constructor(group_by: readonly JobDimension[], values: readonly string[]) {
    this.values = values;
    this.#group_by = group_by;
    this.#row = {
      group: Object.fromEntries(group_by.map((name, index) => [name, values[index]!])),
      jobs: 0,
      unknown_jobs: 0,
      walltime_s: 0,
      busy_device_s: 0,
      requests: 0,
      prompt_tokens: 0,
      completion_tokens: 0,
      energy_j: 0,
      energy_estimated_j: 0,
    };
  }

  add(
    { runs }: Job,
    { group, charged, share }: Part,
    { walltime_s, allocated_s }: ReturnType<typeof timeOf>,
  ): void {
    const row = this.#row;
    const last = runs.at(-1);
    row.jobs++;
    row.walltime_s += walltime_s;
    if (this.#group_by.includes('job')) {
      row.account = group.account === unknown ? undefined : group.account;
      row.state = last?.state;
      row.devices = last?.devices;
      row.device_model = last?.device_model;
    }
    if (runs.some(({ end_seen }) => end_seen)) row.end_seen = true;
    const sum = { busy_s: 0, tokens: 0 };
    for (const each of charged) {
      row.requests += each.requests;
      row.prompt_tokens += each.prompt_tokens;
      row.completion_tokens += each.completion_tokens;
      row.energy_j += each.energy_j;
      row.energy_estimated_j += each.energy_estimated_j;
      sum.busy_s += each.device_s;
      sum.tokens += each.prompt_tokens + each.completion_tokens;
    }
    row.busy_device_s += sum.busy_s;
    if (allocated_s === undefined) {
      row.unknown_jobs++;
      return;
    }
    this.#allocated_s = (this.#allocated_s ?? 0) + allocated_s * share;
    this.#known.busy_s += sum.busy_s;
    this.#known.tokens += sum.tokens;
  }

  row(): JobUsageRow {
    const row = { ...this.#row, allocated_device_s: this.#allocated_s };
    const { busy_s, tokens } = this.#known;
    if (this.#allocated_s !== undefined && this.#allocated_s > 0) {
      // Two gateways charge for the same moment: more than all of it is not busy.
      if (!this.#group_by.includes('model')) row.idle_share = Math.max(0, 1 - busy_s / this.#allocated_s);
      row.tokens_per_device_hour = (tokens / this.#allocated_s) * 3600;
    }
    const all = row.prompt_tokens + row.completion_tokens;
    if (all > 0 && row.energy_j > 0) row.kwh_per_million_tokens = row.energy_j / joules_per_kwh / (all / 1e6);
    return row;
  }
}
