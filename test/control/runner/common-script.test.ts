/** Paths of a site config in scripts, which no shell reads. */
import { expect, it } from 'vitest';
import { commonScriptInput } from '../../../control/runner/slurm-runner.ts';
import { siteSchema } from '../../../spec/site.ts';
import { stateLayout } from '../../../spec/state-layout.ts';

it('a container’s image, command and binds are where the person who deploys has them', () => {
  const site = siteSchema.parse({
    name: 'here',
    kind: 'slurm',
    runtime: {
      container: {
        runtime: 'apptainer',
        command: '$SOFT/bin/apptainer',
        image: '~/vllm.sif',
        binds: ['$HOME/kernels:/kernels'],
      },
    },
  });
  const loaded = { site, path: '/s.yaml', provenance: () => undefined, layout: stateLayout('/s', 'here') };
  const input = commonScriptInput(loaded, { HOME: '/home/ada', SOFT: '/soft' });
  expect(input.site.runtime.container).toMatchObject({
    command: '/soft/bin/apptainer',
    image: '/home/ada/vllm.sif',
    binds: ['/home/ada/kernels:/kernels'],
  });
  expect(() => commonScriptInput(loaded, { HOME: '/home/ada' })).toThrow(/needs \$SOFT/);
});
