/** What is planned again of a model with pools: what was lost, in the pool that lost it. */
import { expect, it } from 'vitest';
import { lostSpec, replannedSpec } from '../../../control/keeper/replanned-state.ts';
import type { LaunchRecord } from '../../../control/state/launch-record.ts';
import { poolsOf } from '../../../solver/placement/pools.ts';
import type { PoolName } from '../../../spec/model-pools.ts';
import { deploymentSchema } from '../../../spec/model-yaml.ts';
import { gguf } from '../../solver/placement/support.ts';
import { deploymentState, launchRecord, plannedLaunch } from '../support.ts';

const spec = deploymentSchema.parse({
  name: 'demo',
  models: [{ name: 'chat', source: '/m.gguf', pools: { prefill: { replicas: 1 }, decode: { replicas: 2 } } }],
});

function launch(id: number, pool: PoolName): LaunchRecord {
  const planned = plannedLaunch(`chat+${pool}-${id}`);
  const units = planned.units.map((unit) => ({ ...unit, pool, model: { ...unit.model, name: 'chat' } }));
  return launchRecord(id, { phase: 'submitted', job_id: String(id), planned: { ...planned, units } });
}

const launches = [launch(1, 'prefill'), launch(2, 'decode'), launch(3, 'decode')];
const state = deploymentState(launches, { spec });
const idOf = (index: number): string => launches[index]!.launch_id;

it.each([
  ['a replica that decodes', [1], { prefill: 0, decode: 1 }],
  ['the one that computes prompts', [0], { prefill: 1, decode: 0 }],
  ['one of each', [0, 2], { prefill: 1, decode: 1 }],
])('asks for %s in the place of what was lost', (_, lost, { prefill, decode }) => {
  const [model, ...more] = lostSpec(state, new Set(lost.map(idOf))).models;
  expect(more).toEqual([]);
  expect(model!.pools).toMatchObject({ prefill: { replicas: prefill }, decode: { replicas: decode } });
  // A pool without any is not placed.
  const asked = poolsOf({ ...gguf('chat', '1b'), spec: model! });
  expect(asked.map(({ spec: { name, replicas } }) => `${name} ${replicas}`)).toEqual([
    `chat (prefill) ${prefill}`,
    `chat (decode) ${decode}`,
  ]);
});

it('asks for both pools as model.yaml has them where all is planned again, and for nothing where nothing was lost', () => {
  expect(replannedSpec(state).models).toEqual(spec.models);
  expect(lostSpec(state, new Set()).models).toEqual([]);
});
