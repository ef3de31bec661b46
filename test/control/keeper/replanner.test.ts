/** A deployment is planned again by the solver when nodes are lost or its load changes, and else left alone. */
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { Replanner } from '../../../control/keeper/replanner.ts';
import { planNow } from '../../../control/plan/plan-now.ts';
import { loadsOf } from '../../../control/plan/planning.ts';
import type { Observation } from '../../../control/reconcile/observe.ts';
import { type Operations, openOperations } from '../../../control/runner/operations.ts';
import type { DeploymentState } from '../../../control/state/deployment-state.ts';
import type { LoadedSite } from '../../../control/state/site-files.ts';
import { synthPresets } from '../../../native/synth/presets.ts';
import { synthesize } from '../../../native/synth/synthesize.ts';
import type { SlurmClient } from '../../../slurm/client.ts';
import { type NodeGroup, parseGres } from '../../../slurm/cluster-facts.ts';
import { assumptions } from '../../../solver/keeping/replan.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import type { ProgressEvent } from '../../../spec/events.ts';
import { deploymentSchema } from '../../../spec/model-yaml.ts';
import { siteSchema } from '../../../spec/site.ts';
import { stateLayout } from '../../../spec/state-layout.ts';
import {
  deploymentState,
  type LaunchFacts,
  launchRecord,
  site as local,
  ScriptedRunner,
  temporaryStore,
} from '../support.ts';

const minute = 60_000;
const device = { kind: 'gpu', memory_gb: 2, cores: 1, emulated: 'cpu' };
const site = siteSchema.parse({
  name: 'local',
  kind: 'slurm',
  node_kinds: ['gh200', 'a100'].map((name) => ({
    name,
    partition: name,
    gres_type: name,
    cpus: 4,
    memory_gb: 30,
    devices: [{ ...device, model: name.toUpperCase(), count: 2 }],
  })),
});

/** Of each kind, its nodes that take jobs and those that do not; the first ones are free. */
let nodes: Record<string, { up: number; down: number }>;
let asked: number;
const group = (kind: string, count: number, state: string): NodeGroup => ({
  partition: kind,
  node_list: kind,
  nodes: Array.from({ length: count }, (_, index) => `${kind}-${state}-${index}`),
  states: [state],
  features: [],
  gres: parseGres(`gpu:${kind}:2`),
  gres_used: parseGres(`gpu:${kind}:0`),
  cpus: 4,
  sockets: 1,
  cores_per_socket: 4,
  threads_per_core: 1,
  memory_mb: 30_000,
  cpu_counts: { allocated: 0, idle: 4 * count, other: 0, total: 4 * count },
});
let away: HpcserveError | undefined;
const slurm = {
  nodeGroups: async () => {
    if (away) throw away;
    asked++;
    return Object.entries(nodes).flatMap(([kind, { up, down }]) => [
      ...(up > 0 ? [group(kind, up, 'idle')] : []),
      ...(down > 0 ? [group(kind, down, 'down')] : []),
    ]);
  },
  partitions: async () => [],
} as unknown as SlurmClient;

let place: ReturnType<typeof temporaryStore>;
let events: ProgressEvent[];
let now_ms: number;
let operations: Operations;
let replanner: Replanner;
let source: string;

beforeEach(async () => {
  place = temporaryStore();
  const { store, folder } = place;
  events = [];
  now_ms = 1000 * minute;
  nodes = { gh200: { up: 1, down: 0 }, a100: { up: 1, down: 0 } };
  asked = 0;
  away = undefined;
  const loaded = (of: typeof site): LoadedSite => ({
    site: of,
    path: '/site.yaml',
    layout: stateLayout(folder, 'local'),
    provenance: () => undefined,
  });
  const common = {
    facts: { user: 'someone', environment: {} },
    command: 'test',
    now_ms: () => now_ms,
    emit: (event: ProgressEvent) => void events.push(event),
    signal: new AbortController().signal,
  };
  operations = {
    ...openOperations({ ...common, loaded: loaded(local) }),
    store,
    loaded: loaded(site),
    runner: new ScriptedRunner(),
    slurm,
  };
  replanner = new Replanner(operations, common.emit);
  source = join(folder, 'tiny.gguf');
  await synthesize({ path: source, shape: synthPresets['tiny-llama']!, quantization: 'F16', seed: 1 });
});
afterEach(() => place.dispose());

/** As `deploy` leaves it: planned by the same solver on what there is now, and served. */
async function deployed(
  model: object = {},
  slurmAsked: object = {},
  facts: LaunchFacts = {},
): Promise<DeploymentState> {
  const spec = deploymentSchema.parse({
    name: 'demo',
    slurm: slurmAsked,
    models: [
      { name: 'm', source, context_tokens: 512, max_sequences: 2, devices: { kind: 'gpu' }, ...model },
    ],
  });
  const { plan, question, fingerprint } = await planNow(operations, spec, '/model.yaml');
  const launches = plan.launches.map((planned, index) =>
    launchRecord(index + 1, {
      phase: 'submitted',
      job_id: String(900 + index),
      submitting_since_ms: now_ms,
      served_at_ms: now_ms,
      fingerprint: fingerprint(planned),
      planned,
      ...facts,
    }),
  );
  const state = deploymentState(launches, {
    spec,
    kept: true,
    models: plan.models,
    planning: assumptions(now_ms, question.node_kinds, loadsOf(plan.models)),
  });
  place.store.prepareDeployment('demo');
  place.store.write(state);
  asked = 0;
  events = [];
  return state;
}

/** What is seen where all jobs are as `phase` says. */
const seen = (state: DeploymentState, phase: 'running' | 'pending' = 'running'): Observation => ({
  at_ms: now_ms,
  problems: [],
  launches: new Map(
    state.launches.map(({ launch_id, job_id, planned }) => [
      launch_id,
      {
        launch_id,
        superseded: false,
        agents: [],
        units: [],
        serving_units: phase === 'running' ? planned.units.map(({ unit }) => unit) : [],
        job: { job_id: job_id!, phase, state: phase.toUpperCase() },
      },
    ]),
  ),
});

const now = (): DeploymentState => place.store.require('demo');
const wanted = (): { node_kind: string; phase: string; tries: number | undefined }[] =>
  now().launches.flatMap(({ superseded, planned: { node_kind, units }, phase, tries }) =>
    superseded ? [] : units.map(() => ({ node_kind, phase, tries })),
  );
const ended = (state: DeploymentState): DeploymentState => {
  const over = {
    ...state,
    launches: state.launches.map((launch, index) =>
      launchRecord(index + 1, {
        ...(launch as LaunchFacts),
        phase: 'ended',
        ended_at_ms: now_ms,
        last: { job_id: launch.job_id!, phase: 'ended', state: 'NODE_FAIL' },
      }),
    ),
  };
  place.store.write(over);
  return over;
};
const both = (tries: number): ReadonlyMap<string, number> =>
  new Map(now().launches.map(({ launch_id }) => [launch_id, tries]));

function measured(rate_per_s: number): void {
  const entry = {
    model: 'm',
    reasoning: false,
    rate_per_s,
    refused_per_s: 0,
    input_tokens: 512,
    output_tokens: 128,
    input_cv: 1,
    output_cv: 1,
    requests: 1000,
    window_s: 900,
    measured_at_ms: now_ms,
  };
  const folder = place.store.layout.gateway_folder;
  mkdirSync(folder, { recursive: true });
  writeFileSync(
    join(folder, 'workload.json'),
    JSON.stringify({ format: 1, measured_at_ms: now_ms, classes: [entry] }),
  );
}

/** Looks for so long, every five seconds. */
async function look(minutes: number): Promise<void> {
  const end_ms = now_ms + minutes * minute;
  for (; now_ms <= end_ms; now_ms += 5000) {
    const state = now();
    await replanner.look(state, seen(state));
  }
}

describe('a job whose nodes are lost', () => {
  it('is planned on another kind at once, with its count of tries', async () => {
    const state = await deployed();
    const first = wanted()[0]!.node_kind;
    const other = first === 'gh200' ? 'a100' : 'gh200';
    nodes[first] = { up: 0, down: 1 };
    expect(await replanner.replaceLost(ended(state), seen(state), both(3))).toBe(true);
    expect(wanted()).toEqual([{ node_kind: other, phase: 'planned', tries: 3 }]);
    const outcome = {
      trigger: 'loss',
      because: `${first}: 0 node(s) take jobs, 1 are needed`,
      changed: true,
      what: `1 × m on ${other} starts; 1 × m on ${first} goes`,
    };
    expect(now().planning?.last).toMatchObject({ at_ms: now_ms, ...outcome });
    expect(events).toMatchObject([{ kind: 'replanned', deployment: 'demo', ...outcome }]);
  });

  it('gets the same launch where its kind has nodes left, and nothing is searched for', async () => {
    const state = await deployed();
    expect(await replanner.replaceLost(ended(state), seen(state), both(0))).toBe(false);
    expect(asked).toBe(1);
    expect(now().planning?.last).toBeUndefined();
    expect(wanted()).toHaveLength(1);
  });

  it('gets the same launch where nothing else suits it, and is not searched for again at once', async () => {
    const state = await deployed({ devices: { models: ['GH200'] } });
    nodes.gh200 = { up: 0, down: 1 };
    for (let turn = 0; turn < 3; turn++)
      expect(
        await replanner.replaceLost(ended({ ...state, planning: now().planning }), seen(state), both(0)),
      ).toBe(false);
    expect(events).toMatchObject([
      { kind: 'replanned', changed: false, what: 'there is no place for 1 × m' },
    ]);
  });

  it('goes to another kind out of the queue, too', async () => {
    const state = await deployed();
    const first = wanted()[0]!.node_kind;
    nodes[first] = { up: 0, down: 1 };
    now_ms += 2 * minute;
    expect(await replanner.look(state, seen(state, 'pending'))).toBe(true);
    expect(wanted().map(({ node_kind }) => node_kind)).not.toContain(first);
  });

  it('leaves the replica that still runs where it is', async () => {
    nodes.gh200 = { up: 2, down: 0 };
    const state = await deployed({ replicas: 2, cpu_threads: 4, devices: { node_kinds: ['gh200'] } });
    expect(state.launches).toHaveLength(2);
    nodes.gh200 = { up: 1, down: 1 };
    const anywhere = {
      ...state,
      spec: {
        ...state.spec,
        models: [{ ...state.spec.models[0]!, devices: { kind: 'gpu' as const, models: [], node_kinds: [] } }],
      },
    };
    const [first, second] = anywhere.launches;
    const over = launchRecord(2, {
      ...(second as LaunchFacts),
      phase: 'ended',
      ended_at_ms: now_ms,
      last: { job_id: '901', phase: 'ended', state: 'NODE_FAIL' },
    });
    place.store.write({ ...anywhere, launches: [first!, over] });
    expect(await replanner.replaceLost(now(), seen(state), new Map([[over.launch_id, 0]]))).toBe(true);
    expect(wanted()).toEqual([
      { node_kind: 'a100', phase: 'planned', tries: 0 },
      { node_kind: 'gh200', phase: 'submitted', tries: undefined },
    ]);
    const names = now().launches.flatMap(({ superseded, planned }) =>
      superseded ? [] : planned.units.map(({ unit }) => unit),
    );
    expect(new Set(names).size).toBe(2);
  });

  it.each<[string, object, object]>([
    ['of which somebody said where it is to run', {}, { partition: 'gh200' }],
    ['that is pinned to its kind', { devices: { node_kinds: ['gh200'] } }, {}],
  ])('stays that of model.yaml: one %s', async (_, model, slurmAsked) => {
    const state = await deployed(model, slurmAsked);
    nodes.gh200 = { up: 0, down: 1 };
    nodes.a100 = { up: 1, down: 0 };
    expect(await replanner.replaceLost(ended(state), seen(state), both(0))).toBe(false);
    expect(wanted()).toHaveLength(1);
  });

  it('does not go where Slurm has just refused it', async () => {
    const state = await deployed();
    const first = wanted()[0]!.node_kind;
    const other = first === 'gh200' ? 'a100' : 'gh200';
    nodes[first] = { up: 0, down: 1 };
    const before = ended(state);
    const refused = launchRecord(7, {
      phase: 'ended',
      superseded: true,
      ended_at_ms: now_ms - minute,
      last: { job_id: '', phase: 'ended', state: 'REFUSED' },
      planned: { ...state.launches[0]!.planned, node_kind: other },
    });
    place.store.write({ ...before, launches: [...before.launches, refused] });
    expect(await replanner.replaceLost(now(), seen(state), both(0))).toBe(false);
  });

  it('gets the same launch where Slurm does not say what there is', async () => {
    const state = await deployed();
    away = new HpcserveError('E_SLURM_UNREACHABLE', { what: 'no answer' });
    expect(await replanner.replaceLost(ended(state), seen(state), both(0))).toBe(false);
    expect(events).toMatchObject([
      { kind: 'warning', message: 'demo: no new plan could be made: no answer [E_SLURM_UNREACHABLE]' },
    ]);
  });
});

describe('another load', () => {
  it('brings more replicas when it lasts, beside those that serve, and fewer when it is over', async () => {
    nodes = { gh200: { up: 4, down: 0 }, a100: { up: 4, down: 0 } };
    await deployed({ replicas: 'auto' });
    const before = wanted().length;
    measured(1e5);
    await look(9);
    expect(wanted()).toHaveLength(before);
    await look(2);
    expect(wanted().length).toBeGreaterThan(before);
    expect(wanted().filter(({ phase }) => phase === 'submitted')).toHaveLength(before);
    expect(events).toMatchObject([
      {
        kind: 'replanned',
        trigger: 'load',
        changed: true,
        because: expect.stringMatching(/^m is asked 100000\/s, .*planned for 1\/s/),
      },
    ]);
    expect(now().planning).toMatchObject({ loads: { m: { rate_per_s: 1e5, source: 'measured' } } });
    expect(now().planning?.differs_since_ms).toBeUndefined();
    // They serve, and then nobody asks so much any more.
    const most = wanted().length;
    const launches = now().launches.map((launch, index) =>
      launchRecord(index + 1, { ...(launch as LaunchFacts), phase: 'submitted', job_id: String(index) }),
    );
    place.store.write({ ...now(), launches });
    measured(1);
    await look(12);
    expect(wanted().length).toBeLessThan(most);
    expect(events.at(-1)).toMatchObject({ kind: 'replanned', trigger: 'load', changed: true });
  });

  it('that comes and goes moves nothing', async () => {
    nodes = { gh200: { up: 4, down: 0 }, a100: { up: 4, down: 0 } };
    await deployed({ replicas: 'auto' });
    measured(1);
    await look(1);
    const launches = JSON.stringify(wanted());
    for (let turn = 0; turn < 30; turn++) {
      measured(turn % 2 === 0 ? 1e5 : 1);
      await look(1);
    }
    expect(JSON.stringify(wanted())).toBe(launches);
    expect(events).toEqual([]);
  });

  it('that changes nothing is looked into once, and what came of it is said', async () => {
    await deployed();
    measured(4);
    await look(60);
    expect(wanted()).toHaveLength(1);
    expect(events).toMatchObject([{ kind: 'replanned', trigger: 'load', changed: false }]);
  });

  it('changes no number that follows demand, and nothing that was stopped meanwhile', async () => {
    nodes = { gh200: { up: 4, down: 0 }, a100: { up: 4, down: 0 } };
    const state = await deployed({ scaling: { min: 1, max: 4 } });
    measured(1e5);
    await look(60);
    expect(wanted()).toHaveLength(1);
    place.store.write({
      ...state,
      desired: 'stopped',
      planning: { ...state.planning!, differs_since_ms: 0 },
    });
    now_ms += 60 * minute;
    events = [];
    expect(await replanner.look({ ...state, kept: true }, seen(state))).toBe(false);
    expect(events).toEqual([]);
  });
});
