/** Where a shell can go, and what its command is told of the site; shells themselves are in slurm-deploy.e2e.test.ts. */
import { afterEach, beforeEach, expect, it } from 'vitest';
import { type Operations, openOperations } from '../../control/operations.ts';
import { siteSchema } from '../../spec/site.ts';
import { temporaryStore } from './fixtures.ts';

let place: ReturnType<typeof temporaryStore>;
beforeEach(() => {
  place = temporaryStore();
});
afterEach(() => place.dispose());

function open(site: object): Operations {
  return openOperations({
    loaded: {
      site: siteSchema.parse({ name: 'here', ...site }),
      path: '/site.yaml',
      layout: place.store.layout,
      provenance: () => undefined,
    },
    facts: { user: 'someone', environment: { PATH: '/nowhere', SLURM_CLUSTERS: 'another' } },
    command: 'test',
    now_ms: Date.now,
    emit: () => {},
    signal: new AbortController().signal,
  });
}

it('is a step on the cluster of the site, whatever the environment says', () => {
  const { command_environment } = open({ kind: 'slurm', slurm: { cluster: 'alpha' } });
  expect(command_environment).toMatchObject({ PATH: '/nowhere', SLURM_CLUSTERS: 'alpha' });
  expect(open({ kind: 'slurm' }).command_environment).toMatchObject({ SLURM_CLUSTERS: 'another' });
});
