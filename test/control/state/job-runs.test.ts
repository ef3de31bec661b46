import { describe, expect, it } from 'vitest';
import { goingRun, jobRecords, runsBetween } from '../../../control/state/job-runs.ts';
import type { JobSnapshot } from '../../../control/state/job-snapshot.ts';
import { joinedJobId } from '../../../control/state/joined-job-id.ts';
import { launchRecord, plannedLaunch } from '../support.ts';

const running = (start_time_ms: number, more: Partial<JobSnapshot> = {}): JobSnapshot => ({
  job_id: '7',
  phase: 'running',
  state: 'RUNNING',
  start_time_ms,
  ...more,
});
const ended = (more: Partial<JobSnapshot>): JobSnapshot => ({
  job_id: '7',
  phase: 'ended',
  state: 'COMPLETED',
  ...more,
});
const waiting: JobSnapshot = { job_id: '7', phase: 'pending', state: 'PENDING' };

describe('runs of a job between two looks at it', () => {
  it('begins, and ends when the scheduler says so', () => {
    const began = running(1000, { account: 'chat', nodes: 'n1', end_time_limit_ms: 9000 });
    expect(runsBetween(undefined, began, 1500)).toEqual([
      { state: 'RUNNING', start_ms: 1000, end_limit_ms: 9000, account: 'chat', nodes: 'n1' },
    ]);
    const over = ended({ state: 'TIMEOUT', start_time_ms: 1000, ended_at_ms: 9100 });
    // What only the look before knew is still known.
    expect(runsBetween(goingRun(began), over, 12_000)).toEqual([
      { state: 'TIMEOUT', start_ms: 1000, end_ms: 9100, account: 'chat', nodes: 'n1' },
    ]);
  });

  it('that went back into the queue ended at some moment since, and no later than its limit', () => {
    expect(runsBetween(goingRun(running(1000)), waiting, 5000)).toMatchObject([
      { state: 'REQUEUED', start_ms: 1000, end_ms: 5000, end_seen: true },
    ]);
    const limited = goingRun(running(1000, { end_time_limit_ms: 3000 }));
    expect(runsBetween(limited, waiting, 5000)).toMatchObject([{ end_ms: 3000 }]);
  });

  it('goes on while its job ends, whatever Slurm says of the next run', () => {
    const ending: JobSnapshot = {
      job_id: '7',
      phase: 'completing',
      state: 'COMPLETING',
      start_time_ms: 130_000,
    };
    expect(runsBetween(goingRun(running(1000)), ending, 5000)).toEqual([
      { state: 'COMPLETING', start_ms: 1000 },
    ]);
    expect(runsBetween(undefined, ending, 5000)).toEqual([]);
  });

  it('that started again before anybody looked ended before the next one began', () => {
    expect(runsBetween(goingRun(running(1000)), running(4000), 6000)).toMatchObject([
      { state: 'REQUEUED', start_ms: 1000, end_ms: 4000, end_seen: true },
      { state: 'RUNNING', start_ms: 4000 },
    ]);
    const over = ended({ start_time_ms: 4000, ended_at_ms: 5000 });
    expect(runsBetween(goingRun(running(1000)), over, 6000)).toMatchObject([
      { start_ms: 1000, end_ms: 4000, end_seen: true },
      { state: 'COMPLETED', start_ms: 4000, end_ms: 5000 },
    ]);
  });

  it('whose job the scheduler has forgotten, or whose node is lost, ended when that was found', () => {
    const forgotten: JobSnapshot = { job_id: '7', phase: 'ended', state: 'UNKNOWN' };
    expect(runsBetween(goingRun(running(1000)), forgotten, 8000)).toMatchObject([
      { state: 'UNKNOWN', start_ms: 1000, end_ms: 8000, end_seen: true },
    ]);
    const lost = ended({ state: 'NODE_LOST', start_time_ms: 1000, presumed: true });
    expect(runsBetween(goingRun(running(1000)), lost, 8000)).toMatchObject([
      { state: 'NODE_LOST', end_ms: 8000, end_seen: true },
    ]);
  });

  it('was none where the job never started', () => {
    expect(runsBetween(undefined, waiting, 1000)).toEqual([]);
    expect(runsBetween(goingRun(waiting), ended({ state: 'CANCELLED' }), 2000)).toEqual([]);
    // Slurm gives a job that was cancelled in the queue that moment as its start.
    const cancelled = ended({ state: 'CANCELLED', start_time_ms: 2000, ended_at_ms: 2000 });
    expect(runsBetween(undefined, cancelled, 2500)).toEqual([]);
  });
});

describe('records of a launch', () => {
  const run = { state: 'RUNNING', start_ms: 1000 };
  const of = (planned: ReturnType<typeof plannedLaunch>, job_id = '7') =>
    jobRecords(
      { name: 'demo', site: 'there' },
      launchRecord(7, { phase: 'submitted', job_id, planned }),
      running(1000),
      [run],
    );

  it('count the devices of all its nodes', () => {
    const planned = plannedLaunch('m-1');
    expect(of(planned)).toMatchObject([
      { site: 'there', deployment: 'demo', models: ['m'], devices: 1, ...run },
    ]);
    const gpus = { ...planned.devices_per_node, kind: 'gpu' as const, model: 'A100', count: 4 };
    expect(of({ ...planned, node_count: 2, devices_per_node: gpus })).toMatchObject([
      { devices: 8, device_model: 'A100' },
    ]);
    const second = { ...planned.units[0]!, unit: 'm-2', first_device: 1 };
    expect(of({ ...planned, units: [...planned.units, second] })).toMatchObject([{ devices: 2 }]);
  });

  it('are of the job that a joined node is in, and none where it is in no job', () => {
    const launch = launchRecord(7, { phase: 'submitted', job_id: joinedJobId('0123abcd', 'f00') });
    const records = (job_number?: string) =>
      jobRecords({ name: 'demo', site: 'there' }, launch, running(1000, { job_number }), [run]);
    expect(records('4711')).toMatchObject([{ job_id: '4711' }]);
    expect(records()).toEqual([]);
  });
});
