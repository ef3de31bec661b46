/** What stays of launches that are over. */
import { expect, it } from 'vitest';
import { keptLaunches } from '../../../control/reconcile/kept-launch.ts';
import { type DeploymentState, forgetOldest } from '../../../control/state/deployment-state.ts';
import { defaultKeepSettings, keep } from '../../../solver/keeping/keep.ts';
import { deploymentState, type LaunchFacts, launchRecord, plannedLaunch } from '../support.ts';

const hour_ms = 3_600_000;
const four_gpus = {
  ...plannedLaunch('m-1'),
  devices_per_node: { kind: 'gpu' as const, model: 'A100', count: 4, memory_bytes: 40e9 },
};

/** Four GPUs for an hour, up to then. */
const ended = (id: number, ended_at_ms: number, facts: LaunchFacts = {}) =>
  launchRecord(id, {
    planned: four_gpus,
    phase: 'ended',
    ended_at_ms,
    last: { job_id: String(id), phase: 'ended', state: 'TIMEOUT', start_time_ms: ended_at_ms - hour_ms },
    ...facts,
  });

const hoursUsed = (state: DeploymentState, now_ms: number): number => {
  const gpu_hours_before = state.gpu_hours_forgotten;
  return keep(keptLaunches(state, new Map()), now_ms, { ...defaultKeepSettings, gpu_hours_before })
    .gpu_hours_used;
};

it('what a deployment used of its budget is counted, however many launches are forgotten', () => {
  let state = deploymentState([]);
  for (let id = 1; id <= 50; id++) {
    const launches = [ended(id, id * hour_ms, { superseded: true }), ...state.launches];
    state = forgetOldest({ ...state, launches });
  }
  expect(state.launches).toHaveLength(20);
  expect(hoursUsed(state, 60 * hour_ms)).toBe(200);
});

it('the last to end are kept, wherever they stand', () => {
  // On idle nodes new launches stand behind the others.
  const launches = Array.from({ length: 25 }, (_, id) => ended(id, id * hour_ms, { superseded: true }));
  const kept = forgetOldest(deploymentState(launches)).launches.map(({ ended_at_ms }) => ended_at_ms);
  expect(kept).toEqual(Array.from({ length: 20 }, (_, at) => (at + 5) * hour_ms));
});

it('a budget that is used up stays so when nothing is started in the place of a launch', () => {
  const given_up = ended(1, 2 * hour_ms, { given_up: 'the budget of 8 GPU-hours is used up' });
  const state = deploymentState([given_up, ended(2, 2 * hour_ms)]);
  const settings = { ...defaultKeepSettings, gpu_hours: 8 };
  expect(keep(keptLaunches(state, new Map()), 3 * hour_ms, settings).actions).toMatchObject([
    { do: 'give_up', launch_id: state.launches[1]!.launch_id },
  ]);
});

it('CPUs use no GPU-hours, as in plans', () => {
  const { devices_per_node, ...planned } = plannedLaunch('m-1');
  const cpus = { ...planned, devices_per_node: { ...devices_per_node, count: 2 } };
  expect(hoursUsed(deploymentState([ended(1, hour_ms, { planned: cpus })]), hour_ms)).toBe(0);
});
