/** What `parallel.jobs` of model.yaml goes with, and what it does not. */
import { expect, it } from 'vitest';
import { deploymentSchema } from '../../spec/model-yaml.ts';

const issues = (model: object, deployment: object = {}): string[] => {
  const models = [{ name: 'm', source: '/m.gguf', ...model }];
  const parsed = deploymentSchema.safeParse({ name: 'demo', models, ...deployment });
  return parsed.error?.issues.map(({ path, message }) => `${path.join('.')}: ${message}`) ?? [];
};

it('takes stages that are divided evenly', () => {
  expect(issues({ parallel: { pipeline: 4, jobs: 2 } })).toEqual([]);
  expect(issues({ parallel: { pipeline: 4 } })).toEqual([]);
  expect(issues({ parallel: { pipeline: { stages_min: 2, stages_max: 4 }, jobs: 2 } })).toEqual([]);
});

const two = { pipeline: 2, jobs: 2 };
it.each([
  ['stages that do not divide', { parallel: { pipeline: 3, jobs: 2 } }, {}, 'evenly over 2 jobs'],
  [
    'devices that do not divide',
    { parallel: { pipeline: { stages_min: 2, stages_max: 5 }, jobs: 2 } },
    {},
    'evenly over 2 jobs',
  ],
  ['a model that is whole', { parallel: { jobs: 2 } }, {}, '1 stages cannot be divided'],
  ['replicas that follow demand', { parallel: two, scaling: { max: 2 } }, {}, 'leave out scaling'],
  ['replicas on idle nodes', { parallel: two, scavenger: { replicas: 1 } }, {}, 'scavenger.replicas'],
  ['several sites', { parallel: two }, { sites: ['a', 'b'] }, 'give site, and not sites'],
])('refuses %s, and says where', (_, model, deployment, words) => {
  const [issue, ...more] = issues(model, deployment);
  expect(more).toEqual([]);
  expect(issue).toMatch(/^models\.0\.parallel\.jobs: /);
  expect(issue).toContain(words);
});
