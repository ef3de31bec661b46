/** By which settings a key may do more than another. */
import fc from 'fast-check';
import { expect, it } from 'vitest';
import { widerSettings } from '../../../gateway/keys/wider-settings.ts';
import { type KeySettings, narrowedSettings } from '../../../spec/key-settings.ts';

const some = fc.uniqueArray(fc.constantFrom('a', 'b', 'c'), { minLength: 1 });
const count = fc.integer({ min: 1, max: 5 });
const settings = fc.record(
  {
    models: some,
    providers: some,
    tiers: fc.uniqueArray(fc.constantFrom('stable' as const, 'scavenger' as const), { minLength: 1 }),
    provides: some,
    requests_per_minute: count,
    tokens_per_minute: count,
    concurrent_requests: count,
    body_bytes_max: count,
    expires_at_ms: count,
    cache_group: fc.constantFrom('private', 'group'),
    budget: fc.oneof(
      fc.record({ tokens: count, window: fc.constantFrom('day' as const, 'total' as const) }),
      fc.record({ tokens: count, device_s: count, window: fc.constantFrom('day' as const) }),
    ),
  },
  { requiredKeys: [] },
);

it('is no wider than itself, nor derived from what it may do', () => {
  fc.assert(
    fc.property(settings, settings, (parent, own) => {
      expect(widerSettings(parent, parent)).toEqual([]);
      expect(widerSettings(narrowedSettings(parent, own), parent)).toEqual([]);
    }),
  );
});

const budget = { tokens: 5, device_s: 5, window: 'day' } as const;

it.each<[keyof KeySettings, KeySettings, KeySettings]>([
  ['models', {}, { models: ['a'] }],
  ['models', { models: ['a', 'b'] }, { models: ['a'] }],
  ['providers', { providers: ['b'] }, { providers: ['a'] }],
  ['tiers', {}, { tiers: ['scavenger'] }],
  ['requests_per_minute', {}, { requests_per_minute: 5 }],
  ['tokens_per_minute', { tokens_per_minute: 6 }, { tokens_per_minute: 5 }],
  ['concurrent_requests', {}, { concurrent_requests: 5 }],
  ['body_bytes_max', {}, { body_bytes_max: 5 }],
  ['expires_at_ms', {}, { expires_at_ms: 5 }],
  ['budget', {}, { budget }],
  ['budget', { budget: { tokens: 5, window: 'day' } }, { budget }],
  ['budget', { budget: { ...budget, device_s: 6 } }, { budget }],
  ['budget', { budget: { ...budget, window: 'total' } }, { budget }],
  ['cache_group', {}, { cache_group: 'private' }],
  ['cache_group', { cache_group: 'group' }, {}],
  ['provides', { provides: ['a'] }, {}],
])('is wider by %s: %o than %o', (name, wide, narrow) => {
  expect(widerSettings(wide, narrow)).toEqual([name]);
});
