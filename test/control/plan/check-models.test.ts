/** Mistakes in a specification are found before anything is submitted. */
import { expect, it } from 'vitest';
import { checkModels } from '../../../control/plan/check-models.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import { deploymentSchema, modelSchema } from '../../../spec/model-yaml.ts';

const kinds = ['gh200', 'a100'];
function refusal(model: object): string {
  const spec = deploymentSchema.parse({ name: 'd', models: [{ name: 'm', source: '/m', ...model }] });
  try {
    checkModels(spec, 'here', kinds);
  } catch (error) {
    if (error instanceof HpcserveError) return error.toText();
    throw error;
  }
  return '';
}

it('names the node kind that is not there, and the nearest', () => {
  expect(refusal({ devices: { node_kinds: ['gh20'] } })).toMatch(
    /here has no node kind "gh20"[\s\S]*gh200, a100[\s\S]*did you mean "gh200"/,
  );
  expect(refusal({ devices: { node_kinds: ['elsewhere', 'a100'] } })).toBe('');
});

it('wants a command for engine command alone, and a place where it listens', () => {
  expect(refusal({ engine: 'command' })).toMatch(/no command/);
  expect(refusal({ command: ['x', '{port}'] })).toMatch(/engine auto[\s\S]*only engine: command/);
  expect(refusal({ engine: 'command', command: ['x'] })).toMatch(/neither \{socket\} nor \{port\}/);
  expect(refusal({ engine: 'command', command: ['x', '{port}', '{socket}'] })).toMatch(/both/);
  expect(refusal({ engine: 'command', command: ['x', '--port={port}'] })).toBe('');
});

it('wants the files that it names', () => {
  expect(refusal({ chat_template: '/nowhere/t.jinja' })).toMatch(/E_CONFIG_MISSING[\s\S]*ENOENT/);
  expect(refusal({ environment_files: ['/nowhere/secrets'] })).toMatch(
    /environment_files of m cannot be read/,
  );
  expect(refusal({ chat_template: '/dev/null' })).toBe('');
});

it('refuses stable replicas that cannot be', () => {
  expect(refusal({ replicas: 2, min_stable_replicas: 3 })).toMatch(
    /m asks for 3 stable replicas, and for 2 in all[\s\S]*min_stable_replicas: 2 or less/,
  );
  expect(refusal({ replicas: 2, min_stable_replicas: 1, tier: 'scavenger' })).toMatch(/tier scavenger/);
  expect(refusal({ replicas: 2, min_stable_replicas: 2 })).toBe('');
  expect(refusal({ replicas: 'auto', min_stable_replicas: 2 })).toBe('');
});

it('refuses two models of one name, and an alias that is another’s name; an alias may be shared', () => {
  const check = (...models: { name: string; aliases?: string[] }[]): void =>
    checkModels(
      deploymentSchema.parse({ name: 'd', models: models.map((model) => ({ source: '/m', ...model })) }),
      'here',
      kinds,
    );
  expect(() => check({ name: 'm' }, { name: 'n', aliases: ['m'] })).toThrow(/"m"/);
  expect(() => check({ name: 'n', aliases: ['m'] }, { name: 'm' })).toThrow(/"m"/);
  expect(() => check({ name: 'm' }, { name: 'm' })).toThrow(/"m"/);
  check({ name: 'm', aliases: ['m', 'shared'] }, { name: 'n', aliases: ['shared'] });
});

it('refuses node kinds of a pool that are not there, and a model that has the name of a pool', () => {
  const pools = { prefill: {}, decode: { devices: { node_kinds: ['gh201'] } } };
  const check = (...models: object[]) =>
    checkModels(
      deploymentSchema.parse({ name: 'd', models: models.map((model) => ({ source: '/m', ...model })) }),
      'here',
      ['gh200'],
    );
  expect(() => check({ name: 'm', pools })).toThrow(/node kind "gh201"/);
  const either = { prefill: {}, decode: {} };
  expect(() => check({ name: 'm', pools: either }, { name: 'm/decode' })).toThrow(
    /"m\/decode", and m has a decode pool/,
  );
  check({ name: 'm', pools: either }, { name: 'm/other' });
});

it('refuses hosts of remote media that the site does not allow', () => {
  const check = (domains: string[], allowed?: string[]) => () =>
    checkModels(
      deploymentSchema.parse({ name: 'd', models: [{ name: 'm', source: '/m', remote_media: { domains } }] }),
      'here',
      kinds,
      allowed,
    );
  expect(check(['a.org', 'b.org'], ['a.org'])).toThrow(/m wants to fetch media from b\.org, and here/);
  expect(check(['a.org'], [])).toThrow(/a\.org/);
  expect(check(['a.org'], ['a.org', 'c.org'])).not.toThrow();
  expect(check(['a.org'])).not.toThrow();
  expect(check([], [])).not.toThrow();
  expect(() =>
    modelSchema.parse({ name: 'm', source: '/m', remote_media: { domains: ['*.org'] } }),
  ).toThrow();
});
