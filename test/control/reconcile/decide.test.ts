import { describe, expect, it } from 'vitest';
import {
  type Action,
  completing_ms_max,
  type DecideTiming,
  decide,
  type LaunchStatus,
  mergePlan,
} from '../../../control/reconcile/decide.ts';
import type { DeploymentState } from '../../../control/state/deployment-state.ts';
import type { JobSnapshot } from '../../../control/state/job-snapshot.ts';
import type { LaunchRecord } from '../../../control/state/launch-record.ts';
import { deploymentState, launchRecord, plannedLaunch } from '../support.ts';

const timing: DecideTiming = { settle_ms: 15_000, force_after_ms: 45_000 };

const running: JobSnapshot = { job_id: '7', phase: 'running', state: 'RUNNING' };
const id = (number: number): string => number.toString(16).padStart(16, '0');

function act(
  state: DeploymentState,
  statuses: Record<number, Partial<LaunchStatus>> = {},
  now_ms = 1_000_000,
): Action[] {
  return decide({
    state,
    statuses: new Map(
      Object.entries(statuses).map(([number, status]) => [
        id(Number(number)),
        { serving_units: [], ...status },
      ]),
    ),
    now_ms,
    timing,
  });
}

describe('decide', () => {
  it('submits what is planned, once', () => {
    expect(act(deploymentState([launchRecord(1), launchRecord(2)]))).toEqual([
      { do: 'submit', launch_id: id(1) },
      { do: 'submit', launch_id: id(2) },
    ]);
    const submitted = launchRecord(1, { phase: 'submitted', job_id: '7', last: running });
    expect(act(deploymentState([submitted]), { 1: { job: running } })).toEqual([]);
  });

  it('does nothing about a launch whose job was not looked at', () => {
    expect(act(deploymentState([launchRecord(1, { phase: 'submitted', job_id: '7' })]))).toEqual([]);
    expect(act(deploymentState([launchRecord(1, { phase: 'submitting', submitting_since_ms: 0 })]))).toEqual([
      { do: 'wait', launch_id: id(1), until_ms: timing.settle_ms },
    ]);
  });

  it('ends a job whose node is lost before its place is given to another', () => {
    const submitted = (number: number, job_id: string) =>
      launchRecord(number, { phase: 'submitted', job_id });
    const state = deploymentState([submitted(1, '7'), submitted(2, '8')]);
    const pending: JobSnapshot = { job_id: '8', phase: 'pending', state: 'PENDING' };
    const actions = decide({
      state,
      statuses: new Map([
        [id(1), { serving_units: [], job: running }],
        [id(2), { serving_units: [], job: pending }],
      ]),
      now_ms: 1_000_000,
      timing,
      // The second went back into the queue meanwhile: it has no node that could be lost.
      lost: new Map([
        [id(1), 'node a1 is lost'],
        [id(2), 'node a2 is lost'],
      ]),
    });
    expect(actions).toEqual([
      {
        do: 'record_end',
        launch_id: id(1),
        last: {
          job_id: '7',
          phase: 'ended',
          state: 'NODE_LOST',
          reason: 'node a1 is lost',
          presumed: true,
        },
      },
      { do: 'record_news', launch_id: id(2), last: pending },
    ]);
  });

  it('gives up a job that is over and that its nodes do not let go of', () => {
    const completing: JobSnapshot = {
      job_id: '7',
      phase: 'completing',
      state: 'COMPLETING',
      ended_at_ms: 1_000,
    };
    const launch = launchRecord(1, { phase: 'submitted', job_id: '7', last: completing });
    const state = deploymentState([launch]);
    const stuck_ms = 1_000 + completing_ms_max;
    expect(act(state, { 1: { job: completing } }, stuck_ms - 1)).toEqual([]);
    expect(act(state, { 1: { job: completing } }, stuck_ms)).toEqual([
      {
        do: 'record_end',
        launch_id: id(1),
        last: { ...completing, phase: 'ended', reason: 'its nodes do not let go of it', presumed: true },
      },
    ]);
    // Nobody says since when.
    const since_ever = { ...completing, ended_at_ms: undefined };
    expect(act(state, { 1: { job: since_ever } }, stuck_ms)).toEqual([]);
  });

  it('adopts the job of an interrupted submission and ends a second one', () => {
    const launch = launchRecord(1, { phase: 'submitting', submitting_since_ms: 0 });
    expect(act(deploymentState([launch]), { 1: { found_jobs: ['7', '8'] } })).toEqual([
      { do: 'adopt', launch_id: id(1), job_id: '7' },
      { do: 'cancel_extra', launch_id: id(1), job_id: '8' },
    ]);
  });

  it('waits until a job cannot turn up any more before it submits again', () => {
    const launch = launchRecord(1, { phase: 'submitting', submitting_since_ms: 1_000_000 });
    const state = deploymentState([launch]);
    const settled = 1_000_000 + timing.settle_ms;
    expect(act(state, { 1: { found_jobs: [] } }, settled - 1)).toEqual([
      { do: 'wait', launch_id: id(1), until_ms: settled },
    ]);
    expect(act(state, { 1: { found_jobs: [] } }, settled)).toEqual([{ do: 'submit', launch_id: id(1) }]);
    const stopped = deploymentState([launch], { desired: 'stopped' });
    expect(act(stopped, { 1: { found_jobs: [] } }, settled)).toMatchObject([{ do: 'record_end' }]);
  });

  it('ends everything of a stopped deployment, with force after a while, and only asks once', () => {
    const launch = launchRecord(1, { phase: 'submitted', job_id: '7', last: running });
    const state = deploymentState([launchRecord(2), launch], { desired: 'stopped' });
    expect(act(state, { 1: { job: running } })).toMatchObject([
      { do: 'record_end', launch_id: id(2), last: { state: 'NEVER_SUBMITTED' } },
      { do: 'cancel', job_id: '7', force: false },
    ]);
    const asked = { ...launch, cancel_requested_ms: 1_000_000 } as LaunchRecord;
    const stopped = deploymentState([asked], { desired: 'stopped' });
    expect(act(stopped, { 1: { job: running } })).toEqual([]);
    expect(act(stopped, { 1: { job: running } }, 1_000_000 + timing.force_after_ms)).toMatchObject([
      { do: 'cancel', force: true },
    ]);
  });

  it('ends what makes room at once, though it serves and its successor does not', () => {
    const old = launchRecord(1, {
      phase: 'submitted',
      job_id: '7',
      superseded: true,
      yields: true,
      last: running,
    });
    const next = launchRecord(2, { phase: 'submitted', job_id: '8', last: { ...running, job_id: '8' } });
    const statuses = { 1: { job: running, serving_units: ['m-1'] }, 2: { job: { ...running, job_id: '8' } } };
    expect(act(deploymentState([next, old]), statuses)).toMatchObject([{ do: 'cancel', job_id: '7' }]);
    const patient = { ...old, yields: undefined };
    expect(act(deploymentState([next, patient]), statuses)).toEqual([]);
  });

  it('keeps what is replaced as long as it serves and its successor does not', () => {
    const old = launchRecord(1, { phase: 'submitted', job_id: '7', superseded: true, last: running });
    const young = launchRecord(2, { phase: 'submitted', job_id: '8', last: { ...running, job_id: '8' } });
    const state = deploymentState([young, old]);
    const oldStatus = { job: running, serving_units: ['m-1'] };
    const youngJob = { ...running, job_id: '8' };
    expect(act(state, { 1: oldStatus, 2: { job: youngJob } })).toEqual([]);
    expect(act(state, { 1: oldStatus, 2: { job: youngJob, serving_units: ['m-2'] } })).toMatchObject([
      { do: 'cancel', job_id: '7' },
    ]);
    // One that serves nothing (it still waits in the queue) is in the way at once.
    expect(act(state, { 1: { job: running }, 2: { job: youngJob } })).toMatchObject([
      { do: 'cancel', job_id: '7' },
    ]);
  });

  it('ends what is replaced on a joined node once its successor was told to run there', () => {
    const job = (number: number, node: string): JobSnapshot => ({
      ...running,
      job_id: `joined.${node}.${id(number)}`,
    });
    const submitted = (number: number, node: string, superseded = false) => {
      const last = job(number, node);
      return launchRecord(number, { phase: 'submitted', job_id: last.job_id, superseded, last });
    };
    const old = submitted(1, 'aaaaaaaa', true);
    const seen = (node: string) => ({
      1: { job: job(1, 'aaaaaaaa'), serving_units: ['m-1'] },
      2: { job: { ...job(2, node), phase: 'pending' as const } },
    });
    const cancelled = (state: DeploymentState, node: string) =>
      act(state, seen(node)).filter((action) => action.do === 'cancel');
    expect(cancelled(deploymentState([submitted(2, 'aaaaaaaa'), old]), 'aaaaaaaa')).toMatchObject([
      { launch_id: id(1) },
    ]);
    // One that is yet to be told does not wait for it, nor does one on another node.
    expect(cancelled(deploymentState([launchRecord(2), old]), 'aaaaaaaa')).toEqual([]);
    expect(cancelled(deploymentState([submitted(2, 'bbbbbbbb'), old]), 'bbbbbbbb')).toEqual([]);
  });

  it('writes down news and ends; a job nobody knows any more has ended', () => {
    const launch = launchRecord(1, { phase: 'submitted', job_id: '7' });
    const pending: JobSnapshot = {
      job_id: '7',
      phase: 'pending',
      state: 'PENDING',
      pending: { reason: 'Priority', explanation: 'others are first' },
    };
    expect(act(deploymentState([launch]), { 1: { job: pending } })).toMatchObject([{ do: 'record_news' }]);
    const ended: JobSnapshot = { job_id: '7', phase: 'ended', state: 'TIMEOUT' };
    expect(act(deploymentState([launch]), { 1: { job: ended } })).toEqual([
      { do: 'record_end', launch_id: id(1), last: ended },
    ]);
    expect(act(deploymentState([launch]), { 1: { job: { ...ended, phase: 'unknown' } } })).toMatchObject([
      { do: 'record_end', last: { phase: 'ended' } },
    ]);
  });
});

describe('mergePlan', () => {
  const print = (launch: { units: { unit: string }[] }): string => launch.units[0]!.unit;
  const names = (_print: string, index: number): string => id(100 + index);

  it('keeps what runs unchanged, adds the new, supersedes the rest', () => {
    const a = launchRecord(1, { phase: 'submitted', job_id: '1', fingerprint: 'a' });
    const b = launchRecord(2, { phase: 'submitted', job_id: '2', fingerprint: 'b' });
    const merged = mergePlan([a, b], [plannedLaunch('a'), plannedLaunch('c')], print, names);
    expect(merged.map(({ launch_id, superseded, phase }) => ({ launch_id, superseded, phase }))).toEqual([
      { launch_id: id(1), superseded: false, phase: 'submitted' },
      { launch_id: id(101), superseded: false, phase: 'planned' },
      { launch_id: id(2), superseded: true, phase: 'submitted' },
    ]);
  });

  it('starts anew what has ended or is being cancelled', () => {
    const ended = launchRecord(1, { phase: 'ended', fingerprint: 'a' });
    const leaving = launchRecord(2, {
      phase: 'submitted',
      job_id: '2',
      fingerprint: 'a',
      cancel_requested_ms: 1,
    });
    const merged = mergePlan([ended, leaving], [plannedLaunch('a')], print, names);
    expect(merged[0]).toMatchObject({ launch_id: id(100), phase: 'planned' });
    expect(merged.slice(1).every((launch) => launch.superseded)).toBe(true);
  });
});
