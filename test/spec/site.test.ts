import { describe, expect, test } from 'vitest';
import { parse } from 'yaml';
import { z } from 'zod';
import { type SiteInput, siteSchema, slurmSettings } from '../../spec/site.ts';
import { expandSite, expandSitePath, siteCacheDir } from '../../spec/site-paths.ts';
import { caseEnvironment, shippedSite, siteNames } from '../slurm/script-cases.ts';

const minimal: SiteInput = { name: 'x', kind: 'slurm' };

test('every key of the schema is described', () => {
  const missing: string[] = [];
  const walk = (schema: Record<string, unknown>, path: string): void => {
    for (const [key, value] of Object.entries(
      (schema.properties ?? {}) as Record<string, Record<string, unknown>>,
    )) {
      if (typeof value.description !== 'string' || value.description.length < 5)
        missing.push(`${path}${key}`);
      walk(value, `${path}${key}.`);
      if (typeof value.items === 'object' && value.items !== null)
        walk(value.items as Record<string, unknown>, `${path}${key}[].`);
    }
  };
  walk(z.toJSONSchema(siteSchema, { io: 'input' }) as Record<string, unknown>, '');
  expect(missing).toEqual([]);
});

test('the shipped sites are there and fit', () => {
  expect(siteNames).toEqual(
    expect.arrayContaining([
      'local',
      'generic-slurm',
      'alps-daint',
      'perlmutter',
      'lumi',
      'ucr-hpcc',
      'test-cluster',
    ]),
  );
  for (const name of siteNames) expect(shippedSite(name).name).toBe(name);
});

test('the GPUs of LUMI have all cores that jobs get there, and no more', () => {
  for (const { cpus, devices } of shippedSite('lumi').node_kinds) {
    expect(cpus).toBe(devices.reduce((sum, { count, cores }) => sum + count * (cores ?? 0), 0));
  }
});

test('a minimal site has the documented defaults', () => {
  const site = siteSchema.parse(minimal);
  expect(site.state_dir).toBe('~/.hpcserve');
  expect(slurmSettings(site)).toMatchObject({
    poll_interval_s: 30,
    signal_s: 120,
    requeue: 'scavenger',
    comment: true,
  });
});

describe('refused', () => {
  const with_kind = (kind: object): unknown => ({ ...minimal, node_kinds: [{ name: 'k', ...kind }] });
  test.each([
    ['an unknown key', { ...minimal, partitoin: 'x' }],
    [
      'an unknown key deep inside',
      with_kind({ devices: [{ kind: 'gpu', model: 'A', count: 1, memory_gb: 1, memory: 2 }] }),
    ],
    ['a line break in a value', { ...minimal, slurm: { defaults: { constraint: 'a\n#SBATCH --nodes=9' } } }],
    ['a space in a partition', { ...minimal, slurm: { defaults: { partition: 'a b' } } }],
    ['a time that is none', { ...minimal, slurm: { defaults: { time_limit: 'soon' } } }],
    ['two node kinds of one name', { ...minimal, node_kinds: [{ name: 'k' }, { name: 'k' }] }],
    ['a container without an image', { ...minimal, runtime: { container: { runtime: 'apptainer' } } }],
    ['ports in the wrong order', { ...minimal, network: { port_range: [5000, 4000] } }],
    ['Slurm settings of a local site', { name: 'x', kind: 'local', slurm: {} }],
    ['an environment name that is none', { ...minimal, runtime: { environment: { 'A B': 'x' } } }],
  ])('%s', (_, site) => {
    expect(siteSchema.safeParse(site).success).toBe(false);
  });
});

test('times may be written as YAML reads them', () => {
  const site = parse(
    'name: x\nkind: slurm\nslurm:\n  defaults:\n    time_limit: 60\nnode_kinds:\n  - name: k\n    max_time: 01:30:00\n',
  );
  expect(siteSchema.safeParse(site).success).toBe(true);
});

describe('paths', () => {
  test('~ and variables, nothing else', () => {
    expect(expandSitePath('~/a', caseEnvironment)).toBe('/home/ada/a');
    expect(expandSitePath(`$SCRATCH/$\{USER}_x`, caseEnvironment)).toBe('/scratch/ada/ada_x');
    expect(expandSitePath('/a~b/$(id)', caseEnvironment)).toBe('/a~b/$(id)');
    expect(() => expandSitePath('$NOPE/x', caseEnvironment)).toThrowError(
      expect.objectContaining({ code: 'E_CONFIG_MISSING' }),
    );
  });

  test('a whole site, once', () => {
    const site = expandSite(
      siteSchema.parse({
        ...minimal,
        scratch_dir: '$SCRATCH/h',
        model_aliases: { a: '~/m.gguf', b: 'hf:org/x' },
        runtime: {
          python: { kind: 'venv', path: '~/env' },
          container: { runtime: 'apptainer', image: '$HOME/i.sif', binds: ['$SCRATCH:/s'] },
        },
      }),
      caseEnvironment,
    );
    expect(site.model_aliases).toEqual({ a: '/home/ada/m.gguf', b: 'hf:org/x' });
    expect(site.runtime).toMatchObject({
      python: { path: '/home/ada/env' },
      container: { image: '/home/ada/i.sif', binds: ['/scratch/ada:/s'] },
    });
    expect(siteCacheDir(site, caseEnvironment)).toBe('/scratch/ada/h/cache');
  });
});
