/** What a site says it has room for, where it was left to the plan where weights lie. */
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { openOperations } from '../../../control/runner/operations.ts';
import { SiteRooms } from '../../../control/scaler/sites/site-room.ts';
import { synthPresets } from '../../../native/synth/presets.ts';
import { synthesize } from '../../../native/synth/synthesize.ts';
import { deploymentSchema } from '../../../spec/model-yaml.ts';
import { siteSchema } from '../../../spec/site.ts';
import { deploymentState, launchRecord, temporaryStore } from '../support.ts';

let place: ReturnType<typeof temporaryStore>;
beforeEach(() => {
  place = temporaryStore();
});
afterEach(() => place.dispose());

/** One node that holds a whole model, and two on which it can only be streamed. */
const site = siteSchema.parse({
  name: 'test',
  kind: 'local',
  node_kinds: [
    {
      name: 'large',
      count: 1,
      memory_gb: 8,
      cpus: 4,
      devices: [{ kind: 'cpu', model: 'CPU', count: 1, memory_gb: 0.52 }],
    },
    {
      name: 'small',
      count: 2,
      memory_gb: 8,
      cpus: 4,
      devices: [{ kind: 'cpu', model: 'CPU', count: 1, memory_gb: 0.26 }],
    },
  ],
});
const share = { name: 'm', replicas: 1, min_stable_replicas: 0, scavenger_replicas: 0, request_share: 1 };

async function roomFor(weights: 'auto' | 'resident' | 'streamed', running?: 'resident' | 'streamed') {
  const source = join(place.folder, 'model.gguf');
  const shape = { ...synthPresets['small-llama']!, n_layer: 24, n_ff: 3072 };
  if (!existsSync(source)) await synthesize({ path: source, shape, quantization: 'F16', seed: 1 });
  const spec = deploymentSchema.parse({
    name: 'demo',
    models: [{ name: 'm', source, weights, context_tokens: 512, scaling: { min: 0, max: 3 } }],
  });
  const one = launchRecord(1, {});
  const units = one.planned.units.map((unit) => ({ ...unit, model: { ...unit.model, weights: running! } }));
  const launches = running === undefined ? [] : [{ ...one, planned: { ...one.planned, units } }];
  const rooms = new SiteRooms(
    openOperations({
      loaded: {
        site,
        path: '/site.yaml',
        layout: place.store.layout,
        provenance: () => undefined,
      } as Parameters<typeof openOperations>[0]['loaded'],
      facts: { user: 'someone', environment: {} },
      command: 'test',
      now_ms: () => 1000,
      emit: () => undefined,
      signal: new AbortController().signal,
    }),
  );
  return await rooms.roomFor(deploymentState(launches, { spec }), spec.models[0]!, 0, share);
}

it('is what there is for replicas like those that run, or like the first one', async () => {
  const [resident, streamed] = [await roomFor('resident'), await roomFor('streamed')];
  expect(resident.limit).toBe(1);
  expect(streamed.limit).toBe(3);
  // The first one would lie on the device, and further ones are like it.
  expect(await roomFor('auto')).toMatchObject({ limit: 1 });
  expect(await roomFor('auto', 'resident')).toMatchObject({ limit: 1 });
  expect(await roomFor('auto', 'streamed')).toMatchObject({ limit: 3 });
});
