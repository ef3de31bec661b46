/**
 * Where the runner of Slurm sites makes job arrays, by what the controller and the settings say, and how it counts
 * them.
 */
import { expect, it } from 'vitest';
import { SlurmRunner } from '../../../control/runner/slurm-runner.ts';
import { SlurmCommandClient } from '../../../slurm/client.ts';
import type { SlurmOverrides } from '../../../spec/model-yaml.ts';
import { siteSchema } from '../../../spec/site.ts';
import { stateLayout } from '../../../spec/state-layout.ts';
import { plannedLaunch } from '../support.ts';

const planned = Array.from({ length: 10 }, (_, index) => plannedLaunch(`m-${index}`));

/** @param config lines of `scontrol show config`, and of partitions */
function runner(
  config: string,
  slurm: object = {},
  overrides?: SlurmOverrides,
  version = '22.05.8',
): SlurmRunner {
  const site = siteSchema.parse({ name: 'here', kind: 'slurm', slurm });
  const answer = (argv: readonly string[]): string =>
    argv.includes('--version') ? `slurm ${version}` : config;
  const commands = {
    run: async (argv: readonly string[]) => ({ stdout: answer(argv), stderr: '', code: 0 }),
  };
  return new SlurmRunner({
    site: { site, path: '/site.yaml', provenance: () => undefined, layout: stateLayout('/nowhere', 'here') },
    client: new SlurmCommandClient(commands),
    environment: {},
    pace: { room: () => 1, take: async () => 1 },
    ...(overrides ? { overrides } : {}),
  });
}
const sizes = async (of: SlurmRunner, offline?: boolean): Promise<number[]> =>
  (await of.arrays.groups(planned, offline)).map((group) => group.length);

it.each([
  ['MaxArraySize            = 1001', [10]],
  ['MaxArraySize            = 5', [5, 5]],
  ['MaxArraySize            = 1001\nSchedulerParameters     = bf_interval=1,max_array_tasks=7', [5, 5]],
  ['MaxArraySize            = 1', []],
  ['MaxArraySize            = 0', []],
])('%s', async (config, expected) => {
  expect(await sizes(runner(config))).toEqual(expected);
});

it('makes none where the site or the deployment says so; the deployment has the last word', async () => {
  const overrides = (array: 'auto' | 'never'): SlurmOverrides => ({ array, extra: [], remove: [] });
  const config = 'MaxArraySize = 1001';
  expect(await sizes(runner(config, { array: 'never' }))).toEqual([]);
  expect(await sizes(runner(config, {}, overrides('never')))).toEqual([]);
  expect(await sizes(runner(config, { array: 'never' }, overrides('auto')))).toEqual([10]);
});

it('makes none on 20.11 where jobs get nodes whole, for it gives the tasks nodes like the first one’s alone', async () => {
  const config = (sharing: string) =>
    `MaxArraySize = 1001\nPartitionName=p Default=YES OverSubscribe=${sharing} MaxTime=UNLIMITED`;
  const whole = { defaults: { exclusive: true } };
  expect(await sizes(runner(config('NO'), {}, undefined, '20.11.4'))).toEqual([10]);
  expect(await sizes(runner(config('NO'), whole, undefined, '20.11.4'))).toEqual([]);
  expect(await sizes(runner(config('EXCLUSIVE'), {}, undefined, '20.11.4'))).toEqual([]);
  expect(await sizes(runner(config('EXCLUSIVE'), whole))).toEqual([10]);
});

it('asks nobody offline', async () => {
  expect(await sizes(runner('MaxArraySize = 0'), true)).toEqual([10]);
});

it('counts every task of an array against limits.max_jobs', async () => {
  const site = siteSchema.parse({ name: 'here', kind: 'slurm', limits: { max_jobs: 11 } });
  const job = (id: string, state: string, name = 'many-0123abcd'): string => {
    const times = ['N/A', 'N/A', 'N/A', '1:00', '0', '0'];
    return `${[id, id, 'N/A', state, 'None', '', '', name, 'ada', '(null)', '(null)', 'p', ...times].join('\u001f')}\u001e\n`;
  };
  const queue = [
    job('7_[4-7,9%2]', 'PENDING'),
    job('7_0', 'RUNNING'),
    job('7_1', 'CANCELLED'),
    job('8', 'RUNNING', 'of-somebody-else'),
    // People put the day into the names of their jobs.
    job('9_[0-999]', 'PENDING', 'climate-20261129'),
    job('10_[0-999]', 'PENDING', 'climate-19991231'),
    // No day: the id of a launch need not have a letter.
    job('11', 'RUNNING', 'many-31415926'),
  ].join('');
  const commands = {
    run: async (argv: readonly string[]) => ({
      stdout: argv.includes('squeue') ? queue : 'ada\n',
      stderr: '',
      code: 0,
    }),
  };
  const counting = new SlurmRunner({
    site: { site, path: '/site.yaml', provenance: () => undefined, layout: stateLayout('/nowhere', 'here') },
    client: new SlurmCommandClient(commands),
    environment: {},
    pace: { room: () => 1, take: async (count) => count },
  });
  expect(await counting.room()).toEqual({ jobs: 4, submissions: 1 });
  expect(await counting.admit(1, 4)).toBe(1);
  await expect(counting.admit(1, 5)).rejects.toMatchObject({
    code: 'E_JOBS_LIMIT',
    details: { queued: 7, wanted: 5, max_jobs: 11 },
  });
});
