/** A job that waits goes to another kind of node once Slurm takes it there, and keeps its place until then. */
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { PendingJobMigrator } from '../../../control/keeper/pending-job-migrator.ts';
import type { Observation } from '../../../control/reconcile/observe.ts';
import { Reconciler } from '../../../control/reconcile/reconciler.ts';
import type { PreparedLaunch, RenderedScript } from '../../../control/runner/job-runner.ts';
import { type Operations, openOperations } from '../../../control/runner/operations.ts';
import type { LaunchRecord } from '../../../control/state/launch-record.ts';
import type { LoadedSite } from '../../../control/state/site-files.ts';
import { synthPresets } from '../../../native/synth/presets.ts';
import { synthesize } from '../../../native/synth/synthesize.ts';
import type { SlurmClient } from '../../../slurm/client.ts';
import { type NodeGroup, parseGres } from '../../../slurm/cluster-facts.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import type { ProgressEvent } from '../../../spec/events.ts';
import { deploymentSchema } from '../../../spec/model-yaml.ts';
import { siteSchema } from '../../../spec/site.ts';
import {
  deploymentState,
  launchRecord,
  site as local,
  partsOf,
  plannedLaunch,
  ScriptedRunner,
  temporaryStore,
} from '../support.ts';

/** A queue with a bound, in which one kind may be refused. */
class Queue extends ScriptedRunner {
  max_jobs = 10;
  refuses: string | undefined;

  override async admit(count: number, jobs = count): Promise<number> {
    const queued = [...this.jobs.values()].filter(({ snapshot }) => snapshot.phase !== 'ended').length;
    if (queued + jobs > this.max_jobs) throw new HpcserveError('E_JOBS_LIMIT', { what: 'too many jobs' });
    return super.admit(count);
  }

  override async submit(
    prepared: PreparedLaunch,
    script: RenderedScript,
  ): Promise<{ job_id: string; where: string }> {
    const { node_kind } = prepared.planned;
    if (node_kind === this.refuses)
      throw new HpcserveError('E_SLURM_ACCOUNT', { what: `your account may not use ${node_kind}` });
    return super.submit(prepared, script);
  }
}

const device = { kind: 'gpu', memory_gb: 2, cores: 1, emulated: 'cpu' };
const site = siteSchema.parse({
  name: 'here',
  kind: 'slurm',
  node_kinds: ['gh200', 'a100', 'idle-gh200', 'idle-a100'].map((name) => ({
    name,
    tier: name.startsWith('idle') ? 'scavenger' : 'stable',
    partition: name,
    gres_type: name,
    count: 1,
    cpus: 4,
    memory_gb: 30,
    devices: [{ ...device, model: name.replace('idle-', '').toUpperCase(), count: 2 }],
  })),
});
const node = (kind: string, used: number): NodeGroup => ({
  partition: kind,
  node_list: `${kind}-1`,
  nodes: [`${kind}-1`],
  states: [used > 0 ? 'mixed' : 'idle'],
  features: [],
  gres: parseGres(`gpu:${kind}:2`),
  gres_used: parseGres(`gpu:${kind}:${used}`),
  cpus: 4,
  sockets: 1,
  cores_per_socket: 4,
  threads_per_core: 1,
  memory_mb: 30_000,
  cpu_counts: { allocated: 0, idle: 4, other: 0, total: 4 },
});
/** Of nodes that lend stages. */
let lenders: NodeGroup[] = [];
/** Of Slurm, the migrator asks only what there is: gh200 is taken, a100 is free. */
const slurm = {
  nodeGroups: async () => [node('gh200', 2), node('a100', 0), ...lenders],
  partitions: async () => [],
} as unknown as SlurmClient;

let place: ReturnType<typeof temporaryStore>;
let runner: Queue;
let events: ProgressEvent[];
let now_ms: number;
let migrator: PendingJobMigrator;
let reconciler: Reconciler;

beforeEach(async () => {
  lenders = [];
  place = temporaryStore();
  const { store } = place;
  runner = new Queue();
  events = [];
  now_ms = 1_000_000;
  const common = {
    facts: { user: 'someone', environment: {} },
    command: 'test',
    now_ms: () => now_ms,
    emit: (event: ProgressEvent) => void events.push(event),
    signal: new AbortController().signal,
  };
  const loaded = (of: typeof site): LoadedSite => ({
    site: of,
    path: '/site.yaml',
    layout: store.layout,
    provenance: () => undefined,
  });
  const operations: Operations = {
    ...openOperations({ ...common, loaded: loaded(local) }),
    loaded: loaded(site),
    runner,
    slurm,
  };
  migrator = new PendingJobMigrator(operations, common.emit);
  reconciler = new Reconciler({ ...common, site, store, runner });
  const source = join(place.folder, 'tiny.gguf');
  await synthesize({ path: source, shape: synthPresets['tiny-llama']!, quantization: 'F16', seed: 1 });
  const spec = deploymentSchema.parse({
    name: 'demo',
    models: [{ name: 'm', source, context_tokens: 512, max_sequences: 2, devices: { kind: 'gpu' } }],
  });
  const snapshot = { job_id: '900', phase: 'pending', state: 'PENDING' } as const;
  const before = launchRecord(1, {
    phase: 'submitted',
    job_id: '900',
    submitting_since_ms: now_ms - 300_000,
    planned: { ...plannedLaunch('m-1'), node_kind: 'gh200', partitions: ['gh200'] },
    last: snapshot,
  });
  runner.jobs.set('900', { launch_id: before.launch_id, snapshot });
  store.prepareDeployment('demo');
  mkdirSync(store.launchFolder('demo', before.launch_id), { recursive: true });
  store.write(deploymentState([before], { spec, kept: true }));
});
afterEach(() => place.dispose());

/** One round of the keeper. */
async function round(): Promise<Observation> {
  const { state, observation } = await reconciler.pass('demo');
  if (await migrator.move(state, observation)) await reconciler.pass('demo');
  now_ms += 5_000;
  return observation;
}
const launches = (): Pick<LaunchRecord, 'phase' | 'superseded'>[] =>
  place.store
    .require('demo')
    .launches.map(({ phase, superseded, planned: { node_kind } }) => ({ node_kind, phase, superseded }));

it('goes to a kind that takes it, and only then out of the queue', async () => {
  // As many jobs as the site allows: the one that waits is not counted against the one in its place.
  runner.max_jobs = 1;
  await round();
  expect(runner.submitted).toHaveLength(1);
  expect(launches()).toEqual([
    { node_kind: 'a100', phase: 'submitted', superseded: false },
    { node_kind: 'gh200', phase: 'submitted', superseded: true },
  ]);
  await round();
  expect(runner.cancelled).toEqual([{ job_id: '900', force: false }]);
  for (let more = 0; more < 5; more++) await round();
  expect(runner.submitted).toHaveLength(1);
  expect(events.filter(({ kind }) => kind === 'kept')).toMatchObject([{ do: 'move' }]);
});

it('keeps its place in the queue where Slurm refuses the new kind, and does not ask again at once', async () => {
  runner.refuses = 'a100';
  for (let more = 0; more < 30; more++) await round();
  expect(runner.cancelled).toEqual([]);
  expect(launches()).toEqual([
    { node_kind: 'a100', phase: 'ended', superseded: true },
    { node_kind: 'gh200', phase: 'submitted', superseded: false },
  ]);
  expect(place.store.require('demo').failure).toBeUndefined();
  expect(events.filter(({ kind }) => kind === 'warning')).toMatchObject([
    { message: expect.stringMatching(/^a100 was refused, .*keeps its place: your account may not use a100/) },
  ]);
  // What a site allows may change.
  runner.refuses = undefined;
  now_ms += 15 * 60_000;
  await round();
  expect(runner.submitted).toHaveLength(1);
  await round();
  expect(runner.cancelled).toEqual([{ job_id: '900', force: false }]);
});

it('stays where it is where it began to run before its replacement was submitted', async () => {
  runner.admitted = 0;
  await round();
  const job = runner.jobs.get('900')!;
  job.snapshot = { job_id: '900', phase: 'running', state: 'RUNNING' };
  runner.admitted = 1;
  await round();
  expect(runner.submitted).toEqual([]);
  expect(launches()).toEqual([
    { node_kind: 'a100', phase: 'ended', superseded: true },
    { node_kind: 'gh200', phase: 'submitted', superseded: false },
  ]);
  expect(place.store.require('demo').failure).toBeUndefined();
});

it('is looked for where the answer got lost, and the one that waits keeps its place meanwhile', async () => {
  runner.failAfter = () =>
    new HpcserveError('E_SLURM_UNREACHABLE', { what: 'lost', details: { may_have_been_submitted: true } });
  await expect(round()).rejects.toThrow('lost');
  runner.failAfter = undefined;
  expect(launches()).toMatchObject([{ phase: 'submitting' }, { phase: 'submitted', superseded: false }]);
  await round();
  await round();
  expect(runner.submitted).toHaveLength(1);
  expect(runner.cancelled).toEqual([{ job_id: '900', force: false }]);
});

it('has its weights where the plan on the other nodes lets them lie', async () => {
  const { store } = place;
  const state = store.require('demo');
  const [before] = state.launches;
  const lying = (launch: LaunchRecord, weights: 'resident' | 'streamed'): LaunchRecord['planned'] => ({
    ...launch.planned,
    units: launch.planned.units.map((unit) => ({ ...unit, model: { ...unit.model, weights } })),
  });
  // Most replicas of the model lie on their devices, and the one that waits was to be streamed.
  const others = [2, 3].map((id) => {
    const snapshot = { job_id: String(id), phase: 'running', state: 'RUNNING' } as const;
    const launch = launchRecord(id, { phase: 'submitted', submitting_since_ms: now_ms, last: snapshot });
    runner.jobs.set(String(id), { launch_id: launch.launch_id, snapshot });
    mkdirSync(store.launchFolder('demo', launch.launch_id), { recursive: true });
    return { ...launch, planned: { ...lying(launch, 'resident'), node_kind: 'gh200' } };
  });
  const models = state.spec.models.map((model) => ({ ...model, weights: 'auto' as const }));
  store.write({
    ...state,
    spec: { ...state.spec, models },
    launches: [{ ...before!, planned: lying(before!, 'streamed') }, ...others],
  });
  await round();
  const moved = place.store.require('demo').launches.find(({ planned }) => planned.node_kind === 'a100');
  expect(moved!.planned.units).toMatchObject([{ unit: 'm-1', model: { weights: 'resident' } }]);
});

/** A pipeline whose first job runs, and whose second one waits for a node that lends it a stage. */
function waitForLender(device_bytes: number): void {
  const { store } = place;
  const state = store.require('demo');
  const [first, lent] = partsOf('cut-0', 2, 'scavenger').map(({ part, ...planned }, at): LaunchRecord => {
    const memory = { device_bytes, kv_bytes: 2 ** 20, share: 0.1 };
    const cut = (units: LaunchRecord['planned']['units']) =>
      units.map((unit) => ({ ...unit, device_kind: 'gpu' as const, device_count: 1, memory }));
    const phase = at === 0 ? 'running' : 'pending';
    const snapshot = { job_id: `${910 + at}`, phase, state: phase.toUpperCase() } as const;
    const launch = launchRecord(910 + at, {
      phase: 'submitted',
      job_id: snapshot.job_id,
      submitting_since_ms: now_ms - 300_000,
      last: snapshot,
      planned: {
        ...planned,
        units: cut(planned.units),
        part: { ...part!, lends_to: cut(part!.lends_to) },
        node_kind: at === 0 ? 'a100' : 'idle-gh200',
        partitions: [at === 0 ? 'a100' : 'idle-gh200'],
        tier: at === 0 ? 'stable' : 'scavenger',
      },
    });
    runner.jobs.set(snapshot.job_id, { launch_id: launch.launch_id, snapshot });
    mkdirSync(store.launchFolder('demo', launch.launch_id), { recursive: true });
    return launch;
  });
  runner.jobs.delete('900');
  store.write({ ...state, launches: [first!, lent!] });
}

it('with lent stages goes to other nodes that lend, in its group and with the stages as they are cut', async () => {
  waitForLender(2 ** 30);
  lenders = [node('idle-gh200', 2), node('idle-a100', 2)];
  await round();
  // All of them are taken.
  expect(launches().map(({ phase }) => phase)).toEqual(['submitted', 'submitted']);
  lenders = [node('idle-gh200', 2), node('idle-a100', 0)];
  now_ms += 120_000;
  await round();
  await round();
  expect(runner.cancelled).toEqual([{ job_id: '911', force: false }]);
  const [first, moved, before] = place.store.require('demo').launches;
  expect(first).toMatchObject({ superseded: false, planned: { node_kind: 'a100' } });
  expect(before).toMatchObject({ superseded: true, planned: { node_kind: 'idle-gh200' } });
  expect(moved).toMatchObject({
    phase: 'submitted',
    superseded: false,
    fingerprint: before!.fingerprint,
    planned: {
      node_kind: 'idle-a100',
      tier: 'scavenger',
      partitions: ['idle-a100'],
      node_count: 1,
      units: [],
      devices_per_node: { model: 'A100', count: 1 },
      part: {
        group: 'cut-0',
        node_index: 1,
        jobs: 2,
        lends_to: [{ unit: 'cut-0', memory: { device_bytes: 2 ** 30 } }],
      },
    },
  });
  expect(moved!.planned.part!.lends_to[0]!.stages).toEqual(before!.planned.part!.lends_to[0]!.stages);
});

it('with lent stages waits on where other nodes that lend have no room for them', async () => {
  waitForLender(3 * 2 ** 30);
  lenders = [node('idle-gh200', 2), node('idle-a100', 0)];
  for (let more = 0; more < 3; more++) await round();
  expect(launches().map(({ phase }) => phase)).toEqual(['submitted', 'submitted']);
  expect(runner.submitted).toEqual([]);
});
