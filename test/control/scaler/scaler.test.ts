/** What the scaler writes into the state of a deployment. */
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import type { Observation } from '../../../control/reconcile/observe.ts';
import { openOperations } from '../../../control/runner/operations.ts';
import { Scaler } from '../../../control/scaler/scaler.ts';
import type { DeploymentState } from '../../../control/state/deployment-state.ts';
import type { LaunchRecord } from '../../../control/state/launch-record.ts';
import { synthPresets } from '../../../native/synth/presets.ts';
import { synthesize } from '../../../native/synth/synthesize.ts';
import type { ProgressEvent } from '../../../spec/events.ts';
import { deploymentSchema } from '../../../spec/model-yaml.ts';
import { deploymentState, type LaunchFacts, launchRecord, site, temporaryStore } from '../support.ts';

const minute = 60_000;
let now_ms: number;
let events: ProgressEvent[];
let scaler: Scaler;
let place: ReturnType<typeof temporaryStore>;

beforeEach(() => {
  now_ms = 1000 * minute;
  events = [];
  place = temporaryStore();
  const { store } = place;
  const operations = openOperations({
    loaded: {
      site,
      path: '/site.yaml',
      layout: store.layout,
      provenance: () => undefined,
    } as Parameters<typeof openOperations>[0]['loaded'],
    facts: { user: 'someone', environment: {} },
    command: 'test',
    now_ms: () => now_ms,
    emit: (event) => events.push(event),
    signal: new AbortController().signal,
  });
  scaler = new Scaler(operations, (event) => events.push(event));
});
afterEach(() => place.dispose());

const serving = (id: number, facts: LaunchFacts = {}): LaunchRecord =>
  launchRecord(id, {
    phase: 'submitted',
    job_id: String(id),
    submitting_since_ms: id * minute,
    served_at_ms: id * minute + 20_000,
    ...facts,
  });

function save(
  min: number | undefined,
  launches: LaunchRecord[],
  source = '/no/such/file.gguf',
  more: object = {},
): DeploymentState {
  const spec = deploymentSchema.parse({
    name: 'demo',
    models: [{ name: 'm', source, scaling: { min, max: 4 }, ...more }],
  });
  const state = deploymentState(launches, { spec, kept: true });
  place.store.prepareDeployment('demo');
  place.store.write(state);
  return state;
}

/** All units of all launches serve. */
const seen = (state: DeploymentState): Observation => ({
  at_ms: now_ms,
  problems: [],
  launches: new Map(
    state.launches.map((launch) => [
      launch.launch_id,
      {
        launch_id: launch.launch_id,
        superseded: false,
        agents: [],
        units: [],
        serving_units: launch.planned.units.map(({ unit }) => unit),
      },
    ]),
  ),
});

/** Rounds of a keeper over six minutes in which nobody asks. */
async function scaleUnasked(state: DeploymentState): Promise<void> {
  for (let round = 0; round <= 72; round++) {
    scaler.readDemand([state]);
    await scaler.scale(place.store.require('demo'), seen(state), false);
    now_ms += 5000;
  }
}

const wanted = (): string[] =>
  place.store.require('demo').launches.flatMap((each) => (each.superseded ? [] : [each.launch_id.slice(-1)]));

describe('the scaler', () => {
  it('gives back the youngest jobs, those that do not serve first, and keeps what is always on', async () => {
    const loading = serving(2, { served_at_ms: undefined });
    await scaleUnasked(save(1, [serving(1), loading, serving(3)]));
    expect(wanted()).toEqual(['1']);
    expect(events).toEqual([
      expect.objectContaining({ kind: 'scaled', from: 3, to: 1, because: 'nobody has asked for 300 s' }),
    ]);
    expect(place.store.require('demo').scaled).toMatchObject({ m: { wake_s: 20 } });
    expect(place.store.require('demo').scaled!.m!.asleep_since_ms).toBeUndefined();
  });

  it('keeps 30 % of what a model whose pipelines change may have, where model.yaml does not say, and the rest for five minutes', async () => {
    const stages = { engine: 'native', parallel: { pipeline: { stages_min: 2, stages_max: 4 } } };
    const state = save(undefined, [serving(1), serving(2), serving(3)], undefined, stages);
    const began_ms = now_ms;
    await scaleUnasked(state);
    expect(wanted()).toEqual(['1', '2']);
    expect(events).toEqual([expect.objectContaining({ kind: 'scaled', from: 3, to: 2 })]);
    // The first look with one before it that is as old as the window.
    expect(events[0]!.at_ms - began_ms).toBe(305_000);
  });

  it('lets a model sleep, and says how long it takes to wake', async () => {
    await scaleUnasked(save(0, [serving(1), serving(2)]));
    expect(wanted()).toEqual([]);
    expect(place.store.require('demo').scaled).toMatchObject({
      m: { asleep_since_ms: expect.any(Number), wake_s: 20 },
    });
  });

  it('takes nothing from a deployment that was stopped meanwhile', async () => {
    const state = save(0, [serving(1)]);
    place.store.write({ ...state, desired: 'stopped' });
    await scaleUnasked(state);
    expect(wanted()).toEqual(['1']);
    expect(events).toEqual([]);
  });

  it('adds a replica as it was planned: nothing in its job is left to be chosen', async () => {
    const source = join(place.folder, 'tiny.gguf');
    await synthesize({ path: source, shape: synthPresets['tiny-llama']!, quantization: 'F16', seed: 1 });
    const state = save(2, [serving(1)], source);
    scaler.readDemand([state]);
    expect(await scaler.scale(state, seen(state), false)).toBe(true);
    const [added] = place.store.require('demo').launches;
    const [model] = state.spec.models;
    expect(model).toMatchObject({ parallel: { tensor: 'auto' } });
    expect(added!.planned.units.map((unit) => unit.model)).toEqual([
      { ...model, parallel: { tensor: 1, pipeline: 1 } },
    ]);
  });

  it('adds a replica whose weights lie where those of the others do', async () => {
    const source = join(place.folder, 'tiny.gguf');
    await synthesize({ path: source, shape: synthPresets['tiny-llama']!, quantization: 'F16', seed: 1 });
    // It has ended and gets a successor, so that a plan alone sees nothing that runs.
    const other = launchRecord(1, { phase: 'ended' });
    const units = other.planned.units.map((unit) => ({
      ...unit,
      model: { ...unit.model, weights: 'streamed' as const },
    }));
    const state = save(2, [{ ...other, planned: { ...other.planned, units } }], source, { weights: 'auto' });
    scaler.readDemand([state]);
    expect(await scaler.scale(state, seen(state), false)).toBe(true);
    const [added] = place.store.require('demo').launches;
    expect(added!.planned.units).toMatchObject([
      { model: { weights: 'streamed', replicas: 1 }, memory: { arena_bytes: expect.any(Number) } },
    ]);
  });

  it('says what a further replica lacks, once in a while, and adds nothing on a used-up budget', async () => {
    const state = save(2, [serving(1)]);
    scaler.readDemand([state]);
    expect(await scaler.scale(state, seen(state), true)).toBe(false);
    expect(events).toEqual([]);
    for (let round = 0; round < 5; round++) {
      expect(await scaler.scale(state, seen(state), false)).toBe(false);
      now_ms += 5000;
    }
    expect(events).toMatchObject([
      { kind: 'warning', message: expect.stringMatching(/m of demo needs 1 more replica.*E_MODEL_/) },
    ]);
  });

  it('does not try again under another name what was given up', async () => {
    const state = save(2, [serving(1), launchRecord(2, { phase: 'ended', given_up: 'it failed six times' })]);
    scaler.readDemand([state]);
    expect(await scaler.scale(state, seen(state), false)).toBe(false);
    expect(events).toEqual([]);
  });
});
