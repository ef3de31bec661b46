/** What `hpcserve status` shows of a state folder that is damaged in places. */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { Command } from 'commander';
import { expect, it } from 'vitest';
import { registerStatus } from '../../../cli/commands/status.ts';
import { Configuration } from '../../../cli/config/configuration.ts';
import type { CliContext } from '../../../cli/context.ts';
import { DeploymentStore } from '../../../control/state/deployment-store.ts';
import { stateLayout } from '../../../spec/state-layout.ts';
import { deploymentState, launchRecord } from '../../control/support.ts';
import { temporaryHome } from '../support.ts';

it.each([true, false])(
  'names a deployment that cannot be read, and shows the others; --json: %s',
  async (json) => {
    const home = temporaryHome();
    try {
      const store = new DeploymentStore(stateLayout(join(home.folder, '.hpcserve'), 'local'));
      for (const name of ['damaged', 'whole']) {
        store.prepareDeployment(name);
        store.write(deploymentState([launchRecord(1, { phase: 'ended' })], { name, desired: 'stopped' }));
      }
      writeFileSync(join(store.folder('damaged'), 'deployment.json'), '{');
      const environment = { HOME: home.folder, PATH: '/nowhere' };
      const lines: string[] = [];
      const context = {
        out: (line: string) => lines.push(line),
        json,
        tty: { stdin: false, stdout: false, stderr: false },
        columns: 100,
        environment,
        working_folder: home.folder,
        configuration: new Configuration({ environment, working_folder: home.folder }),
        signal: new AbortController().signal,
        now_ms: () => Date.now(),
      } as unknown as CliContext;
      const command = new Command('status').argument('[name]');
      registerStatus(command, context);
      await command.parseAsync([], { from: 'user' });
      const text = lines.join('\n');
      expect(text).toMatch(/damaged\/deployment\.json cannot be read/);
      if (json) {
        const report = JSON.parse(text) as {
          deployments: { name: string }[];
          unreadable: { code: string }[];
        };
        expect(report.deployments.map(({ name }) => name)).toEqual(['whole']);
        expect(report.unreadable.map(({ code }) => code)).toEqual(['E_DEPLOYMENT_STATE']);
      } else expect(text).toMatch(/^whole {2}stopped/m);
    } finally {
      home.dispose();
    }
  },
);
