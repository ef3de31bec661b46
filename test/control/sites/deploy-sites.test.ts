/** The order of a deployment over sites, and what is said where some of them fail. */
import { beforeEach, expect, it } from 'vitest';
import { type Division, deployDivision } from '../../../control/sites/deploy-sites.ts';
import { requireAll } from '../../../control/sites/each-site.ts';
import { atSite } from '../../../control/sites/site-commands.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import { deploymentSchema } from '../../../spec/model-yaml.ts';
import { answer, scriptedSite, share } from './support.ts';

const spec = deploymentSchema.parse({
  name: 'demo',
  models: [{ name: 'm', source: '/m.gguf', replicas: 2 }],
});
const request = {
  ...{ spec, spec_file: '/model.yaml', slurm: [], offline: false },
  ...{ detach: false, stop_first: false, timeout_s: 0 },
};
const clock = { now_ms: Date.now, signal: new AbortController().signal };
let told: string[];
let events: string[];
const view = {
  note: (line: string) => void told.push(line),
  progress: (site: string) => ({
    show: ({ kind }: { kind: string }) => void events.push(`${site} ${kind}`),
    close: () => void events.push(`${site} closed`),
  }),
};
beforeEach(() => {
  told = [];
  events = [];
});

const serves = (site: string): string[] => [
  JSON.stringify({ at_ms: 1, kind: 'serving', url: 'http://x', models: ['m'] }),
  JSON.stringify({ deployment: 'demo', site, url: `http://${site}`, key: 'k', models: ['m'], serving: true }),
];
const node = (site: string) => ({ site, models: [{ name: 'm', state: 'serving', reachable: true }] });

type Answers = Record<string, (argv: readonly string[]) => string[]>;
/** The division over near and far, with a site that has nothing of it any more. */
function division(answers: Answers = {}): Division {
  const asked = ['near', 'far', 'left'].map((name) => ({
    commands: scriptedSite(name, told, ([command, ...argv]) => {
      if (command === 'nodes') return [JSON.stringify({ nodes: [node('near'), node('far')] })];
      return command === 'deploy' ? (answers[name]?.(argv) ?? serves(name)) : ['{}'];
    }),
    answer: answer(name, name === 'left' ? { desired: 'serving', live_launches: 1 } : undefined),
  }));
  const whole = { name: 'demo', models: [{ name: 'm', source: '/m.gguf' }] };
  return { asked, whole, of: 'a', share: share('a', { near: 1, far: 1, left: 0 }), doubts: [] };
}

it('ends what is left once the others serve, and asks the first gateway for all of them', async () => {
  const { deployed, left } = await deployDivision(division(), request, view, clock);
  expect(told).toEqual([
    'near: deploy',
    'far: deploy',
    'left: has nothing of demo any more; its jobs end',
    'left: stop',
    'near: nodes',
  ]);
  expect(deployed.map(({ url }) => url)).toEqual(['http://near', 'http://far']);
  expect(left).toEqual([]);
  expect(events.toSorted()).toEqual(['far closed', 'far serving', 'near closed', 'near serving']);
});

it('ends it before where that is asked for, and leaves it to the person where nobody waits', async () => {
  await deployDivision(division(), { ...request, stop_first: true }, view, clock);
  expect(told.filter((line) => /: (stop|deploy)$/.test(line))).toEqual([
    'left: stop',
    'near: deploy',
    'far: deploy',
  ]);
  told.length = 0;
  const { left } = await deployDivision(division(), { ...request, detach: true }, view, clock);
  expect(told).toEqual(['near: deploy', 'far: deploy']);
  expect(left.map(({ name }) => name)).toEqual(['left']);
});

it('says what serves and what does not where one site fails, and ends nothing', async () => {
  const fails = (): never => {
    throw atSite('far', new HpcserveError('E_SLURM_ACCOUNT', { what: 'no such account', try: 'ask' }));
  };
  await expect(deployDivision(division({ far: fails }), request, view, clock)).rejects.toMatchObject({
    code: 'E_SITES_PARTLY',
    because: ['far: no such account [E_SLURM_ACCOUNT]', 'near: serves, and goes on at http://near'],
    try: expect.arrayContaining(['far: ask']),
  });
  expect(told).toEqual(['near: deploy', 'far: deploy']);
  expect(events).toContain('far closed');
});

it.each([
  ['says nothing of where it serves', [], 'without saying where it serves'],
  ['speaks another language', ['{"kind": 7}'], 'what far answers is not understood here'],
  ['prints no JSON', ['Segmentation fault'], 'what far answers is not understood here'],
])('refuses a site that %s', async (_, lines, message) => {
  await expect(deployDivision(division({ far: () => lines }), request, view, clock)).rejects.toMatchObject({
    code: 'E_SITES_PARTLY',
    because: expect.arrayContaining([expect.stringContaining(message)]),
  });
});

it('takes a site that knows nothing of the deployment for right, unless none does', () => {
  const commands = scriptedSite('near', told, () => []);
  const unknown = new HpcserveError('E_DEPLOYMENT_UNKNOWN', { what: 'there is no deployment "demo"' });
  const away = atSite('far', new HpcserveError('E_SSH_CONNECT', { what: 'no route', try: 'look' }));
  requireAll(
    [
      { commands, value: 'x' },
      { commands, error: unknown },
    ],
    'it is stopped',
  );
  expect(() => requireAll([{ commands, error: unknown }], 'it is stopped')).toThrow(unknown);
  expect(() =>
    requireAll(
      [
        { commands, value: 'x' },
        { commands, error: away },
      ],
      'it is stopped',
    ),
  ).toThrow('it is stopped on 1 of 2 sites');
});
