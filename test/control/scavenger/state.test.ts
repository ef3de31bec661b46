/** Replicas on idle nodes in the state of a deployment: there, followed and ended, and no part of what it promises. */
import { afterEach, beforeEach, expect, it } from 'vitest';
import { assess } from '../../../control/reconcile/assess.ts';
import { decide } from '../../../control/reconcile/decide.ts';
import { keptLaunches } from '../../../control/reconcile/kept-launch.ts';
import { Reconciler } from '../../../control/reconcile/reconciler.ts';
import { liveLaunches, scavengedLaunches, wantedLaunches } from '../../../control/state/deployment-state.ts';
import type { LaunchRecord } from '../../../control/state/launch-record.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import type { ProgressEvent } from '../../../spec/events.ts';
import {
  deploymentState,
  type LaunchFacts,
  launchRecord,
  plannedLaunch,
  ScriptedRunner,
  site,
  temporaryStore,
} from '../support.ts';

const running = { phase: 'running' as const, state: 'RUNNING' };
const own = launchRecord(1, { phase: 'submitted', job_id: '1' });
const beyond = (facts: LaunchFacts = {}): LaunchRecord =>
  launchRecord(2, {
    phase: 'submitted',
    job_id: '2',
    planned: { ...plannedLaunch('m-2'), tier: 'scavenger', scavenged: { time_min_s: 60 } },
    ...facts,
  });
const statuses = new Map([
  [own.launch_id, { job: { job_id: '1', ...running }, serving_units: ['m-1'] }],
  [beyond().launch_id, { job: { job_id: '2', ...running }, serving_units: ['m-2'] }],
]);
const timing = { settle_ms: 0, force_after_ms: 1000 };

it('is live and not wanted: a deployment is whole without it, and nobody replaces it', () => {
  const state = deploymentState([own, beyond({ phase: 'ended' })]);
  expect(wantedLaunches(state)).toEqual([own]);
  expect(keptLaunches(state, new Map()).map(({ launch_id }) => launch_id)).toEqual([own.launch_id]);
  expect(liveLaunches(deploymentState([own, beyond()]))).toHaveLength(2);
  expect(scavengedLaunches(deploymentState([own, beyond(), beyond({ superseded: true })]))).toHaveLength(1);
  const launches = new Map(
    [own, beyond()].map((launch) => [
      launch.launch_id,
      {
        ...statuses.get(launch.launch_id)!,
        launch_id: launch.launch_id,
        superseded: false,
        agents: [],
        units: launch.planned.units.map(({ unit }) => ({
          unit,
          model: 'm',
          engine: 'native',
          state: launch === own ? ('serving' as const) : ('lost' as const),
        })),
      },
    ]),
  );
  const assessed = assess(deploymentState([own, beyond()]), { at_ms: 0, launches, problems: [] });
  expect(assessed).toMatchObject({ phase: 'serving', replicas_wanted: 1, replicas_failed: 0 });
});

it('is left alone while it is wanted, withdrawn when it is not, and ended with the deployment', () => {
  const decided = (launch: LaunchRecord, desired: 'serving' | 'stopped' = 'serving') =>
    decide({ state: deploymentState([own, launch], { desired }), statuses, now_ms: 0, timing })
      .filter(({ launch_id }) => launch_id === launch.launch_id)
      .map((action) => action.do);
  expect(decided(beyond({ last: { job_id: '2', ...running } }))).toEqual([]);
  expect(decided(beyond({ last: { job_id: '2', ...running }, superseded: true }))).toEqual(['cancel']);
  expect(decided(beyond({ phase: 'planned', superseded: true }))).toEqual(['record_end']);
  expect(decided(beyond({ last: { job_id: '2', ...running } }), 'stopped')).toEqual(['cancel']);
});

let place: ReturnType<typeof temporaryStore>;
beforeEach(() => {
  place = temporaryStore();
});
afterEach(() => place.dispose());

it('that Slurm refuses is told, and fails neither command nor deployment', async () => {
  const { store } = place;
  store.prepareDeployment('demo');
  store.write(deploymentState([launchRecord(2, { planned: beyond().planned })]));
  const runner = new ScriptedRunner();
  runner.failBefore = () =>
    new HpcserveError('E_SLURM_REFUSED', { what: 'sbatch refused the job', because: 'invalid qos' });
  const events: ProgressEvent[] = [];
  const reconciler = new Reconciler({
    site,
    store,
    runner,
    facts: { user: 'someone', environment: {} },
    now_ms: () => 0,
    emit: (event) => events.push(event),
    command: 'test',
  });
  const { state } = await reconciler.pass('demo');
  expect(state.launches[0]).toMatchObject({ phase: 'ended', last: { state: 'REFUSED' } });
  expect(state.failure).toBeUndefined();
  expect(events).toEqual([
    expect.objectContaining({ kind: 'warning', message: expect.stringContaining('invalid qos') }),
  ]);
});
