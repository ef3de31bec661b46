import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { joinJobs } from '../../../ledger/index.ts';
import { type JobRecord, jobRecordSchema } from '../../../spec/job-record.ts';
import { type JobDimension, jobUsageRowSchema } from '../../../spec/job-usage.ts';
import type { UsageRow } from '../../../spec/usage.ts';

const hour_ms = 3_600_000;

const run = (job_id: string, more: Partial<JobRecord> = {}): JobRecord =>
  jobRecordSchema.parse({
    format: 1,
    site: 's',
    job_id,
    deployment: 'd',
    account: 'chat',
    node_kind: 'gh200',
    tier: 'stable',
    models: ['m'],
    devices: 4,
    state: 'RUNNING',
    start_ms: 0,
    end_ms: hour_ms,
    ...more,
  });

const used = (job: string, device_s: number, more: Partial<UsageRow> = {}, model = 'm'): UsageRow => ({
  group: { job, model, account: 'chat', deployment: 'd', tier: 'stable', site: 's' },
  requests: 1,
  errors: 0,
  retries: 0,
  prompt_tokens: 100,
  completion_tokens: 900,
  cached_tokens: 0,
  reasoning_tokens: 0,
  duration_ms: 1,
  ttft_ms: 1,
  ttft_requests: 1,
  decode_ms: 1,
  decode_tokens: 1,
  device_s,
  energy_j: 3.6e6,
  energy_estimated_j: 0,
  first_ms: 0,
  last_ms: 0,
  ...more,
});

const join = (
  usage: UsageRow[],
  runs: JobRecord[],
  group_by: JobDimension[],
  time: { since_ms?: number; until_ms?: number } = {},
) => joinJobs(usage, runs, { group_by, now_ms: 2 * hour_ms, ...time });

describe('jobs beside what they computed', () => {
  it('have device-hours, what was charged of them, and what came of it', () => {
    const [row] = join([used('7', 3600)], [run('7')], ['job']);
    expect(row).toMatchObject({
      group: { job: '7' },
      account: 'chat',
      devices: 4,
      walltime_s: 3600,
      allocated_device_s: 4 * 3600,
      busy_device_s: 3600,
      idle_share: 0.75,
      tokens_per_device_hour: 250,
      kwh_per_million_tokens: 1000,
    });
    expect(jobUsageRowSchema.parse(row)).toEqual(row);
  });

  it('count whole where nobody asked them anything, and up to now while they run', () => {
    expect(join([], [run('7', { end_ms: undefined })], ['job'])).toMatchObject([
      { group: { job: '7' }, allocated_device_s: 8 * 3600, idle_share: 1, tokens_per_device_hour: 0 },
    ]);
  });

  it('add the runs of one that went back into the queue, and count only the time asked for', () => {
    const runs = [
      run('7', { end_ms: hour_ms / 2, end_seen: true, state: 'REQUEUED' }),
      run('7', { start_ms: hour_ms, end_ms: 2 * hour_ms }),
    ];
    expect(join([], runs, ['job'])).toMatchObject([{ state: 'RUNNING', walltime_s: 5400, end_seen: true }]);
    const later = join([], runs, ['job'], { since_ms: hour_ms / 4, until_ms: 1.5 * hour_ms });
    expect(later).toMatchObject([{ walltime_s: 900 + 1800 }]);
    expect(join([], runs, ['job'], { since_ms: 3 * hour_ms })).toEqual([]);
  });

  it('of which nobody has a record are named, and are in no ratio', () => {
    const rows = join([used('7', 3600), used('8', 60)], [run('7')], ['deployment']);
    expect(rows).toMatchObject([
      { jobs: 2, unknown_jobs: 1, busy_device_s: 3660, idle_share: 0.75, tokens_per_device_hour: 250 },
    ]);
    const [, unknown] = join([used('7', 3600), used('8', 60)], [run('7')], ['job']);
    expect(unknown).toMatchObject({ group: { job: '8' }, account: 'chat', unknown_jobs: 1 });
    expect(unknown).not.toHaveProperty('idle_share');
    expect(unknown?.allocated_device_s).toBeUndefined();
  });

  it('are told apart by their sites, and what nobody answered belongs to none', () => {
    const runs = [run('7'), run('7', { site: 'other' })];
    expect(join([], runs, ['site'])).toMatchObject([{ group: { site: 'other' } }, { group: { site: 's' } }]);
    expect(join([used('-', 0)], [], ['job'])).toEqual([]);
  });

  it('are never idle below zero where two gateways charge for the same moment', () => {
    expect(join([used('7', 5 * hour_ms)], [run('7')], ['job'])).toMatchObject([{ idle_share: 0 }]);
  });

  it('stand in the order of their numbers', () => {
    const jobs = join(
      [],
      ['10', '9', '9_10', '9_2'].map((id) => run(id)),
      ['job'],
    );
    expect(jobs.map(({ group }) => group.job)).toEqual(['9', '9_2', '9_10', '10']);
  });
});

describe('by model', () => {
  it('a job is split by what each was charged, and equally where nothing was', () => {
    const runs = [run('7', { models: ['m', 'n'] })];
    const split = join([used('7', 3000), used('7', 1000, {}, 'n')], runs, ['model']);
    expect(split.map(({ allocated_device_s }) => allocated_device_s)).toEqual([10_800, 3600]);
    expect(split.every((row) => row.idle_share === undefined)).toBe(true);
    expect(join([], runs, ['model']).map((row) => row.allocated_device_s)).toEqual([7200, 7200]);
  });

  it('nothing is lost or doubled, whatever ran and was charged', () => {
    const model = fc.constantFrom('m', 'n', 'o');
    const charges = fc.array(
      fc.tuple(fc.constantFrom('1', '2', '3'), model, fc.integer({ min: 0, max: 9999 })),
    );
    const runs = fc.array(
      fc.tuple(fc.constantFrom('1', '2', '3'), fc.uniqueArray(model, { maxLength: 3 }), fc.nat(9), fc.nat(9)),
    );
    fc.assert(
      fc.property(charges, runs, (charged, ran) => {
        const usage = charged.map(([job, name, device_s]) => used(job, device_s, {}, name));
        const records = ran.map(([job, models, start, length]) =>
          run(job, { models, start_ms: start * hour_ms, end_ms: (start + length) * hour_ms }),
        );
        const sums = (group_by: JobDimension[]) => {
          const rows = join(usage, records, group_by);
          const sum = (of: (row: (typeof rows)[number]) => number): number =>
            rows.reduce((total, row) => total + of(row), 0);
          return {
            allocated: Math.round(sum((row) => row.allocated_device_s ?? 0)),
            busy: sum((row) => row.busy_device_s),
            tokens: sum((row) => row.completion_tokens),
          };
        };
        const whole = sums(['job']);
        expect(sums(['model'])).toEqual(whole);
        expect(sums(['account', 'deployment'])).toEqual(whole);
      }),
    );
  });
});
