import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { configKeys } from '../../../cli/config/config-schema.ts';
import { Configuration } from '../../../cli/config/configuration.ts';

let root: string;
beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), 'hpcserve-config-'));
  for (const folder of ['work', 'home/.config/hpcserve', 'etc/hpcserve'])
    mkdirSync(join(root, folder), { recursive: true });
});
afterEach(() => rmSync(root, { recursive: true, force: true }));

const write = (path: string, text: string): void => writeFileSync(join(root, path), text);
const open = (environment: Record<string, string> = {}): Configuration =>
  new Configuration({
    environment: { HOME: join(root, 'home'), ...environment },
    working_folder: join(root, 'work'),
    etc_folder: join(root, 'etc'),
  });

it('lets the stronger place win, and names the place down to the line', () => {
  const layers: { add: () => void; configuration: () => Configuration; place: RegExp; value: string }[] = [
    {
      add: () => write('etc/hpcserve/config.yaml', 'slurm:\n  account: wide\n'),
      configuration: () => open(),
      place: /etc\/hpcserve\/config\.yaml:2:3$/,
      value: 'wide',
    },
    {
      add: () => write('home/.config/hpcserve/config.yaml', '# mine\nslurm:\n  account: mine\n'),
      configuration: () => open(),
      place: /\.config\/hpcserve\/config\.yaml:3:3$/,
      value: 'mine',
    },
    {
      add: () => write('work/hpcserve.yaml', 'slurm: {account: here}\n'),
      configuration: () => open(),
      place: /work\/hpcserve\.yaml:1:9$/,
      value: 'here',
    },
    {
      add: () => {},
      configuration: () => open({ HPCSERVE_ACCOUNT: 'env' }),
      place: /^HPCSERVE_ACCOUNT$/,
      value: 'env',
    },
    {
      add: () => {},
      configuration: () => {
        const configuration = open({ HPCSERVE_ACCOUNT: 'env' });
        configuration.setFlag('slurm.account', '--account', 'flag');
        return configuration;
      },
      place: /^--account$/,
      value: 'flag',
    },
  ];
  for (const { add, configuration, place, value } of layers) {
    add();
    const winner = configuration().winner('slurm.account');
    expect(winner?.value).toBe(value);
    expect(winner?.place).toMatch(place);
  }
});

it('lists every place that may set a key, whether it does or not', () => {
  const places = open().explain('progress');
  expect(places.map((source) => source.layer)).toEqual([
    'flag',
    'environment',
    'launch folder',
    'user',
    'site-wide',
    'default',
  ]);
  expect(places.filter((source) => source.value !== undefined)).toHaveLength(1);
});

it('refuses wrong values with the place that set them', () => {
  expect(() => open({ HPCSERVE_PROGRESS: 'loud' }).get('progress')).toThrow(/HPCSERVE_PROGRESS/);
  write('work/hpcserve.yaml', 'sites: x\n');
  expect(() => open().get('site')).toThrowError(
    expect.objectContaining({ because: [expect.stringMatching(/hpcserve\.yaml:1:1.*did you mean "site"/)] }),
  );
});

it('suggests the nearest key', () => {
  expect(() => Configuration.key('slurm.acount')).toThrowError(
    expect.objectContaining({ try: ['did you mean "slurm.account"?'] }),
  );
});

it('has an environment variable of its own for each key', () => {
  const variables = Object.values(configKeys).map((key) => key.variable);
  expect(new Set(variables).size).toBe(variables.length);
});

it('takes minutes of wall time without quotes from a file, as from a variable', () => {
  write('work/hpcserve.yaml', 'slurm: {time_limit: 90}\n');
  expect(open().get('slurm.time_limit')).toBe('90');
  expect(open({ HPCSERVE_TIME_LIMIT: '60' }).get('slurm.time_limit')).toBe('60');
});
