/** The job of a submission whose answer nobody lived to hear is known by what names it, whatever the clocks say. */
import { expect, it } from 'vitest';
import { SlurmRunner } from '../../../control/runner/slurm-runner.ts';
import { SlurmCommandClient } from '../../../slurm/client.ts';
import { siteSchema } from '../../../spec/site.ts';
import { stateLayout } from '../../../spec/state-layout.ts';

const launch_id = '0123456789abcdef';

/** @param jobs number, state, comment and name of each, all submitted in 2020 by the controller's clock */
function runner(jobs: readonly (readonly [string, string, string, string])[]): SlurmRunner {
  const times = ['2020-01-01T00:00:00', 'N/A', 'N/A', '1:00:00', '0', '0'];
  const queue = jobs.map(([id, state, comment, name]) => {
    const columns = [
      id,
      id,
      'N/A',
      state,
      'None',
      comment,
      '',
      name,
      'ada',
      '(null)',
      '(null)',
      'p',
      ...times,
    ];
    return `${columns.join('\u001f')}\u001e\n`;
  });
  const commands = {
    run: async (argv: readonly string[]) => ({
      stdout: argv.includes('squeue') ? queue.join('') : 'ada\n',
      stderr: '',
      code: 0,
    }),
  };
  return new SlurmRunner({
    site: {
      site: siteSchema.parse({ name: 'here', kind: 'slurm' }),
      path: '/site.yaml',
      provenance: () => undefined,
      layout: stateLayout('/nowhere', 'here'),
    },
    client: new SlurmCommandClient(commands),
    environment: {},
    pace: { room: () => 1, take: async () => 1 },
  });
}

it.each([
  ['by its comment', 'hpcserve:0123456789abcdef', 'renamed', ['7']],
  ['by its name, where the site strips comments', '(null)', 'demo-01234567', ['7']],
  ['by its name, where the site puts its own words into comments', 'cost centre 7', 'demo-01234567', ['7']],
  ['not by the name of a launch whose id only begins so', 'hpcserve:01234567ffffffff', 'demo-01234567', []],
  ['not where it is another', '(null)', 'demo-11234567', []],
])('finds it %s', async (_, comment, name, expected) => {
  expect(await runner([['7', 'PENDING', comment, name]]).find(launch_id)).toEqual(expected);
});

it('tells the one that runs before those that wait or are over', async () => {
  const comment = `hpcserve:${launch_id}`;
  const jobs = [
    ['7', 'COMPLETED', comment, 'demo-01234567'],
    ['8', 'PENDING', comment, 'demo-01234567'],
    ['9', 'RUNNING', comment, 'demo-01234567'],
  ] as const;
  expect(await runner(jobs).find(launch_id)).toEqual(['9', '8', '7']);
});
