/** Two native models on one device have one device worker, whose state speaks of both. */
import { mkdirSync } from 'node:fs';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { unitErrors } from '../../../control/reconcile/assess.ts';
import { observe, type UnitStatus } from '../../../control/reconcile/observe.ts';
import { describeLaunch } from '../../../control/runner/prepare-launch.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import { siteSchema } from '../../../spec/site.ts';
import { deploymentState, launchRecord, plannedLaunch, temporaryStore, writeAgentState } from '../support.ts';

let place: ReturnType<typeof temporaryStore>;
beforeEach(() => {
  place = temporaryStore();
});
afterEach(() => place.dispose());

/** Units `m-0` and `n-0` as they are seen through the state of their common worker. */
function statuses(session: {
  models: ('serving' | 'failed')[];
  errors: [string, HpcserveError][];
  error?: HpcserveError;
  next_tries_ms?: Record<string, number>;
}) {
  const planned = plannedLaunch('m-0');
  const first = planned.units[0]!;
  planned.units.push({ ...first, unit: 'n-0', model: { ...first.model, name: 'n' } });
  const launch = launchRecord(1, { phase: 'submitted', job_id: 'j1', planned });
  const state = deploymentState([launch]);
  mkdirSync(place.store.launchFolder('demo', launch.launch_id), { recursive: true });
  const error = session.error ?? session.errors[0]?.[1];
  const { next_tries_ms = {} } = session;
  writeAgentState(place.store, launch, {
    sessions: [
      {
        session_id: 's',
        role: 'device-worker',
        unit: 'm-0',
        units: ['m-0', 'n-0'],
        devices: [{ index: 0, kind: 'cpu', model: 'CPU', memory_bytes: 1e9, isa: [] }],
        engine: 'native',
        models: ['m', 'n'].map((name, at) => ({
          name,
          aliases: [],
          state: session.models[at]!,
          precision: 'Q8_0',
          context_tokens: 1024,
        })),
        next_tries_ms,
        ...(error ? { error: error.toJSON() } : {}),
        ...(session.errors.length > 0
          ? { model_errors: Object.fromEntries(session.errors.map(([name, each]) => [name, each.toJSON()])) }
          : {}),
      },
    ],
  });
  const jobs = new Map([['j1', { job_id: 'j1', phase: 'running' as const, state: 'RUNNING' }]]);
  const seen = observe(state, place.store, { at_ms: Date.now(), jobs, found: new Map() }, Date.now());
  const units = seen.launches.get(launch.launch_id)!.units;
  return Object.fromEntries(units.map((unit): [string, UnitStatus] => [unit.unit, unit]));
}

const broken = new HpcserveError('E_MODEL_UNREADABLE', { what: 'the weights are cut off' });
const gone = new HpcserveError('E_INTERNAL', { what: 'the worker died' });

it('each serves, on the device of the worker', () => {
  const { 'm-0': m, 'n-0': n } = statuses({ models: ['serving', 'serving'], errors: [] });
  expect([m!.state, n!.state]).toEqual(['serving', 'serving']);
  expect(n!.given!.devices).toMatchObject([{ index: 0, model: 'CPU' }]);
});

it('the error of one is not that of the other', () => {
  const { 'm-0': m, 'n-0': n } = statuses({ models: ['serving', 'failed'], errors: [['n', broken]] });
  expect(m).toMatchObject({ state: 'serving' });
  expect(m!.error).toBeUndefined();
  expect(n).toMatchObject({ state: 'failed', error: 'the weights are cut off' });
});

it('one that is tried again says when', () => {
  const next_tries_ms = { 'n-0': Date.UTC(2026, 10, 29, 14, 20, 59) };
  const seen = statuses({ models: ['serving', 'failed'], errors: [['n', broken]], next_tries_ms });
  expect(unitErrors(Object.values(seen))).toEqual([
    `n-0 on ${seen['n-0']!.node}: the weights are cut off; it is tried again at 2026-11-29T14:20Z`,
  ]);
});

it('the error of the worker is that of both', () => {
  const { 'm-0': m, 'n-0': n } = statuses({ models: ['failed', 'failed'], errors: [], error: gone });
  expect([m!.error, n!.error]).toEqual(['the worker died', 'the worker died']);
});

it('how a site wants devices shared is in the launch; what it leaves out is not', () => {
  const launchOf = (sharing: object) =>
    describeLaunch(
      'd',
      '0'.repeat(16),
      plannedLaunch('m-0'),
      siteSchema.parse({ name: 's', kind: 'local', sharing }),
      place.store,
      { user: 'u', environment: {} },
    ).launch.sharing;
  expect(launchOf({})).toBeUndefined();
  expect(launchOf({ keep_alive_s: 20, overestimate: 0 })).toEqual({ keep_alive_s: 20, overestimate: 0 });
  expect(() => launchOf({ keep_alive_ms: 20 })).toThrow(/keep_alive_ms/);
});
