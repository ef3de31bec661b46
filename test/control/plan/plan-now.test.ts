/** A plan counts on nodes that nobody else is about to take. */
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { planNow } from '../../../control/plan/plan-now.ts';
import { type Operations, openOperations } from '../../../control/runner/operations.ts';
import type { LoadedSite } from '../../../control/state/site-files.ts';
import { synthPresets } from '../../../native/synth/presets.ts';
import { synthesize } from '../../../native/synth/synthesize.ts';
import type { SlurmClient } from '../../../slurm/client.ts';
import { type NodeGroup, parseGres } from '../../../slurm/cluster-facts.ts';
import { deploymentSchema } from '../../../spec/model-yaml.ts';
import { siteSchema } from '../../../spec/site.ts';
import { stateLayout } from '../../../spec/state-layout.ts';
import {
  deploymentState,
  type LaunchFacts,
  launchRecord,
  site as local,
  temporaryStore,
} from '../support.ts';

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
    devices: [{ ...device, model: name.toUpperCase(), count: 1 }],
  })),
});
const node = (kind: string): NodeGroup => ({
  partition: kind,
  node_list: kind,
  nodes: [kind],
  states: ['idle'],
  features: [],
  gres: parseGres(`gpu:${kind}:1`),
  gres_used: parseGres(`gpu:${kind}:0`),
  cpus: 4,
  sockets: 1,
  cores_per_socket: 4,
  threads_per_core: 1,
  memory_mb: 30_000,
  cpu_counts: { allocated: 0, idle: 4, other: 0, total: 4 },
});
const slurm = {
  nodeGroups: async () => [node('gh200'), node('a100')],
  partitions: async () => [],
} as unknown as SlurmClient;

let place: ReturnType<typeof temporaryStore>;
let operations: Operations;
beforeEach(async () => {
  place = temporaryStore();
  const { folder, store } = place;
  const loaded = (of: typeof site): LoadedSite => ({
    site: of,
    path: '/site.yaml',
    layout: stateLayout(folder, 'local'),
    provenance: () => undefined,
  });
  const common = {
    facts: { user: 'someone', environment: {} },
    command: 'test',
    now_ms: () => 1_000_000,
    emit: () => undefined,
    signal: new AbortController().signal,
  };
  operations = {
    ...openOperations({ ...common, loaded: loaded(local) }),
    store,
    loaded: loaded(site),
    slurm,
  };
  const shape = synthPresets['tiny-llama']!;
  await synthesize({ path: join(folder, 'tiny.gguf'), shape, quantization: 'F16', seed: 1 });
});
afterEach(() => place.dispose());

async function kindPlanned(name: string): Promise<string | undefined> {
  const source = join(place.folder, 'tiny.gguf');
  const models = [{ name, source, context_tokens: 512, max_sequences: 2, devices: { kind: 'gpu' } }];
  const { plan } = await planNow(operations, deploymentSchema.parse({ name, models }), '/model.yaml');
  return plan.launches[0]?.node_kind;
}

/** Another deployment with one launch on the kind that was planned first. */
function other(node_kind: string, facts: LaunchFacts, desired: 'serving' | 'stopped' = 'serving'): void {
  const launch = launchRecord(1, facts);
  const model = node_kind.toUpperCase();
  const planned = {
    ...launch.planned,
    node_kind,
    devices_per_node: { kind: 'gpu' as const, model, count: 1, memory_bytes: 2e9 },
  };
  place.store.prepareDeployment('other');
  place.store.write(deploymentState([{ ...launch, planned }], { name: 'other', desired }));
}

it('goes elsewhere where another deployment is about to take the nodes', async () => {
  const first = (await kindPlanned('demo'))!;
  for (const facts of [
    { phase: 'planned' },
    { phase: 'submitting' },
    { phase: 'submitted', last: { job_id: '1', phase: 'pending', state: 'PENDING' } },
  ] satisfies LaunchFacts[]) {
    other(first, facts);
    expect(await kindPlanned('demo'), facts.phase).not.toBe(first);
  }
});

it('is as before where the other has its nodes, or wants them no more', async () => {
  const first = (await kindPlanned('demo'))!;
  // What Slurm says is free is without them.
  other(first, { phase: 'submitted', last: { job_id: '1', phase: 'running', state: 'RUNNING' } });
  expect(await kindPlanned('demo')).toBe(first);
  other(first, { phase: 'ended' });
  expect(await kindPlanned('demo')).toBe(first);
  other(first, { phase: 'planned' }, 'stopped');
  expect(await kindPlanned('demo')).toBe(first);
  // Its own are what it plans for.
  other(first, { phase: 'planned' });
  expect(await kindPlanned('other')).toBe(first);
});

it('leaves weights where they lie of replicas that run, unless much is gained', async () => {
  const source = join(place.folder, 'tiny.gguf');
  const model = { name: 'demo', source, context_tokens: 512, max_sequences: 2, devices: { kind: 'gpu' } };
  const spec = deploymentSchema.parse({ name: 'demo', models: [{ ...model, weights: 'auto' }] });
  const planned = async () => (await planNow(operations, spec, '/model.yaml')).plan;
  const first = await planned();
  expect(first.launches[0]!.units[0]!.model.weights).toBe('resident');
  // So small a model takes as long either way.
  const streamed = deploymentSchema.parse({ name: 'demo', models: [{ ...model, weights: 'streamed' }] });
  const { plan } = await planNow(operations, streamed, '/model.yaml');
  const launch = { ...launchRecord(1, { phase: 'submitted' }), planned: plan.launches[0]! };
  place.store.prepareDeployment('demo');
  place.store.write(deploymentState([launch], { name: 'demo', desired: 'serving' }));
  const next = await planned();
  expect(next.launches[0]!.units[0]!.model.weights).toBe('streamed');
  expect(next.models[0]!.reasons[0]).toMatch(/^weights: auto: streamed: it runs so/);
});

it('counts on no device of this machine that another deployment has', async () => {
  const libraries = join(place.folder, 'libraries');
  mkdirSync(libraries);
  writeFileSync(join(libraries, 'libggml-cuda.so'), '');
  const machine = (count: number): typeof site =>
    siteSchema.parse({
      name: 'local',
      kind: 'local',
      native: { library_dir: libraries },
      node_kinds: [
        {
          name: 'box',
          count: 1,
          cpus: 4,
          memory_gb: 30,
          devices: [{ kind: 'gpu', model: 'BOX', memory_gb: 40, count }],
        },
      ],
    });
  const warnings: string[] = [];
  const plannedOn = (count: number): Promise<string | undefined> => {
    const { slurm: _, ...rest } = operations;
    operations = {
      ...rest,
      loaded: { ...operations.loaded, site: machine(count) },
      emit: (event) => void (event.kind === 'warning' && warnings.push(event.message)),
    };
    return kindPlanned('demo');
  };
  expect(await plannedOn(1)).toBe('box');
  expect(warnings.join()).not.toContain('other deployments');
  other('box', { phase: 'submitted', last: { job_id: '1', phase: 'running', state: 'RUNNING' } });
  expect(await plannedOn(1)).toBeUndefined();
  expect(warnings).toContain('other deployments have devices of this machine: 1× BOX (other)');
  expect(await plannedOn(2)).toBe('box');
});
