/** The jobs for idle nodes are planned whole: nothing in them is left open. */
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { type Operations, openOperations } from '../../../control/runner/operations.ts';
import { Shapes } from '../../../control/scavenger/shapes.ts';
import { synthPresets } from '../../../native/synth/presets.ts';
import { synthesize } from '../../../native/synth/synthesize.ts';
import { deploymentSchema } from '../../../spec/model-yaml.ts';
import { siteSchema } from '../../../spec/site.ts';
import { deploymentState, site as local, temporaryStore } from '../support.ts';

const idle = siteSchema.parse({
  name: 'here',
  kind: 'slurm',
  node_kinds: [
    {
      name: 'idle',
      tier: 'scavenger',
      partition: 'idle',
      count: 2,
      cpus: 4,
      memory_gb: 30,
      devices: [{ kind: 'gpu', model: 'A100', memory_gb: 2, count: 1, cores: 1, emulated: 'cpu' }],
    },
  ],
});

let place: ReturnType<typeof temporaryStore>;
let operations: Operations;
beforeEach(() => {
  place = temporaryStore();
  const { store } = place;
  const loaded = { path: '/site.yaml', layout: store.layout, provenance: () => undefined };
  const opened = openOperations({
    loaded: { ...loaded, site: local },
    facts: { user: 'someone', environment: {} },
    command: 'test',
    now_ms: () => 1_000_000,
    emit: () => undefined,
    signal: new AbortController().signal,
  });
  operations = { ...opened, loaded: { ...loaded, site: idle } };
});
afterEach(() => place.dispose());

it('has weights where its plan lets them lie, and how many replicas there are as model.yaml has it', async () => {
  const source = join(place.folder, 'tiny.gguf');
  await synthesize({ path: source, shape: synthPresets['tiny-llama']!, quantization: 'F16', seed: 1 });
  const model = { name: 'm', source, replicas: 3, weights: 'auto', context_tokens: 512, max_sequences: 2 };
  const spec = deploymentSchema.parse({ name: 'demo', models: [{ ...model, scavenger: { replicas: 1 } }] });
  const made = await new Shapes(operations).of(deploymentState([], { spec }), spec.models[0]!);
  expect(made.because).toEqual([]);
  expect(made.shapes[0]!.launch.units).toMatchObject([
    { model: { ...spec.models[0], weights: 'resident', parallel: { tensor: 1, pipeline: 1 } } },
  ]);
});
