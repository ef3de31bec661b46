import { expect, test } from 'vitest';
import {
  loadTime_s,
  preemptionsByKind,
  readHistory,
  recordIdle,
  recordLaunch,
  type ScavengerHistory,
  writeHistory,
} from '../../../control/scavenger/history.ts';
import { reportScavenged } from '../../../control/scavenger/report.ts';
import type { JobSnapshot } from '../../../control/state/job-snapshot.ts';
import type { LaunchRecord } from '../../../control/state/launch-record.ts';
import { type LaunchFacts, launchRecord, plannedLaunch, temporaryStore } from '../support.ts';

const hour = 3_600_000;
const start = 100 * hour;
const launch = (facts: LaunchFacts = {}): LaunchRecord =>
  launchRecord(1, {
    phase: 'submitted',
    job_id: '7',
    planned: {
      ...plannedLaunch('m-0'),
      tier: 'scavenger',
      node_kind: 'gpu',
      devices_per_node: { kind: 'gpu', model: 'GH200', count: 2, memory_bytes: 1 },
      scavenged: { time_min_s: 60 },
    },
    ...facts,
  });
const job = (phase: JobSnapshot['phase'], restart_count = 0): JobSnapshot => ({
  job_id: '7',
  phase,
  state: phase.toUpperCase(),
  restart_count,
  ...(phase === 'pending' ? {} : { start_time_ms: start + restart_count * 2 * hour }),
});

test('a run for each start of a job: it loads, serves, is preempted, comes back, and ends', () => {
  const history: ScavengerHistory = { format: 1, runs: [], idle: [] };
  const see = (snapshot: JobSnapshot, now_ms: number, serving_units: string[] = []): void =>
    recordLaunch(history, 'd', launch(), { job: snapshot, serving_units }, now_ms);
  see(job('pending'), start - 1);
  expect(history.runs).toEqual([]);
  see(job('running'), start + 1000);
  see(job('running'), start + 30_000, ['m-0']);
  see(job('running'), start + 60_000, ['m-0']);
  // The script has asked for the requeue, and Slurm has not counted it yet.
  see(job('pending'), start + hour);
  see(job('pending', 1), start + hour + 5000);
  see(job('running', 1), start + 2 * hour + 10_000, ['m-0']);
  recordLaunch(
    history,
    'd',
    launch({ phase: 'ended', ended_at_ms: start + 3 * hour, last: { ...job('ended', 1), state: 'TIMEOUT' } }),
    undefined,
    start + 4 * hour,
  );
  expect(history.runs).toMatchObject([
    { restart: 0, devices: 2, served_ms: start + 30_000, ended_ms: start + hour, end: 'PREEMPTED' },
    { restart: 1, served_ms: start + 2 * hour + 10_000, ended_ms: start + 3 * hour, end: 'TIMEOUT' },
  ]);
  expect(preemptionsByKind(history, start + 4 * hour)).toEqual(
    new Map([['gpu', { preemptions: 1, job_hours: 2 }]]),
  );
  expect(preemptionsByKind(history, start + 100 * hour).size).toBe(0);
  expect(loadTime_s(history, 'm', 'gpu')).toBe(20);
  expect(loadTime_s(history, 'm', 'cpu')).toBeUndefined();
});

test('a preemption between two looks is counted, without the time that nobody saw', () => {
  const history: ScavengerHistory = { format: 1, runs: [], idle: [] };
  recordLaunch(history, 'd', launch(), { job: job('pending', 2), serving_units: [] }, start);
  recordLaunch(history, 'd', launch(), { job: job('pending', 2), serving_units: [] }, start + 1);
  expect(preemptionsByKind(history, start)).toEqual(new Map([['gpu', { preemptions: 2, job_hours: 0 }]]));
});

test('is kept in the state folder, and says what was gained', () => {
  const { store, dispose } = temporaryStore();
  try {
    const history = readHistory(store.layout);
    expect(history).toEqual({ format: 1, runs: [], idle: [] });
    recordLaunch(history, 'd', launch(), { job: job('running'), serving_units: [] }, start);
    recordLaunch(history, 'd', launch(), { job: job('running'), serving_units: ['m-0'] }, start + 900_000);
    recordIdle(history, 4, start);
    recordIdle(history, 4, start + 600_000);
    // Nobody looked for an hour: nobody knows.
    recordIdle(history, 4, start + 4_200_000);
    writeHistory(store.layout, history, start);
    const { all, idle_device_s, node_kinds } = reportScavenged(store.layout, start, start + hour);
    expect(all).toMatchObject({
      runs: 1,
      preempted: 0,
      device_s: 7200,
      starting_device_s: 1800,
      serving_device_s: 5400,
      requests: 0,
    });
    expect(idle_device_s).toBe(2400);
    expect(node_kinds).toMatchObject([{ node_kind: 'gpu', preemptions: 0, job_hours: 1 }]);
    // A month later it is forgotten.
    const later = start + 30 * 24 * hour;
    history.runs[0]!.ended_ms = start + hour;
    writeHistory(store.layout, history, later);
    expect(readHistory(store.layout).runs).toEqual([]);
  } finally {
    dispose();
  }
});
