/** What `pools` of model.yaml goes with, and what it does not. */
import { expect, it } from 'vitest';
import { plannedName, plannedNameOf, servedNameOf, unitStem } from '../../spec/model-pools.ts';
import { deploymentSchema } from '../../spec/model-yaml.ts';

const issues = (model: object, deployment: object = {}): string[] => {
  const models = [{ name: 'm', source: '/m.gguf', ...model }];
  const parsed = deploymentSchema.safeParse({ name: 'demo', models, ...deployment });
  return parsed.error?.issues.map(({ path, message }) => `${path.join('.')}: ${message}`) ?? [];
};
const pools = { prefill: { replicas: 1 }, decode: { replicas: 2 } };

it('takes both pools, with devices of their own', () => {
  expect(issues({ pools })).toEqual([]);
  expect(issues({ pools: { prefill: {}, decode: {} }, engine: 'native' })).toEqual([]);
  expect(
    issues({ pools: { ...pools, decode: { devices: { node_kinds: ['grace'] }, max_sequences: 64 } } }),
  ).toEqual([]);
});

it.each([
  [
    'a pool without replicas',
    { pools: { ...pools, decode: { replicas: 0 } } },
    {},
    'pools.decode.replicas',
    'leave out pools and write replicas',
  ],
  ['one pool alone', { pools: { prefill: {} } }, {}, 'pools.decode', ''],
  [
    'replicas beside them',
    { pools, replicas: 3 },
    {},
    'replicas',
    'write pools.prefill.replicas and pools.decode.replicas',
  ],
  ['a wrapped engine', { pools, engine: 'vllm' }, {}, 'engine', 'write engine: native'],
  ['stages', { pools, parallel: { pipeline: 2 } }, {}, 'parallel', 'leave out parallel'],
  ['layers that are split', { pools, parallel: { tensor: 2 } }, {}, 'parallel', 'leave out parallel'],
  ['weights elsewhere', { pools, weights: 'streamed' }, {}, 'weights', 'leave out weights'],
  ['replicas that follow demand', { pools, scaling: { max: 2 } }, {}, 'scaling', 'leave out scaling'],
  [
    'replicas on idle nodes',
    { pools, scavenger: { replicas: 1 } },
    {},
    'scavenger.replicas',
    'leave out scavenger.replicas',
  ],
  [
    'stable replicas among others',
    { pools, min_stable_replicas: 1 },
    {},
    'min_stable_replicas',
    'tier: stable',
  ],
  ['several sites', { pools }, { sites: ['a', 'b'] }, 'pools', 'give site, and not sites'],
])('refuses %s, and says where and what to write', (_, model, deployment, path, words) => {
  const [issue, ...more] = issues(model, deployment);
  expect(more).toEqual([]);
  expect(issue).toContain(`models.0.${path}: `);
  expect(issue).toContain(words);
});

it('pools have names that no model has, and units of their own', () => {
  expect(plannedName('org/chat', 'decode')).toBe('org/chat (decode)');
  expect(servedNameOf('org/chat (decode)')).toBe('org/chat');
  expect(servedNameOf('org/chat')).toBe('org/chat');
  expect(plannedNameOf({ model: { name: 'chat' }, pool: 'prefill' })).toBe('chat (prefill)');
  expect(plannedNameOf({ model: { name: 'chat' } })).toBe('chat');
  expect(unitStem('org/chat (decode)')).toBe('org/chat/decode');
  expect(issues({ name: plannedName('chat', 'decode') })[0]).toContain('letters, digits');
});
