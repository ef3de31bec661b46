/** What `hpcserve stop` leaves behind: nothing, also of what had only begun. */
import { readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { DeploymentStore } from '../../../control/state/deployment-store.ts';
import { isAlive, type ProcessIdentity } from '../../../host/process-identity.ts';
import { gatewayFiles, stateLayout } from '../../../spec/state-layout.ts';
import { deploymentState, launchRecord } from '../../control/support.ts';
import { type Home, temporaryHome } from '../support.ts';

let home: Home;
beforeEach(() => {
  home = temporaryHome();
});
afterEach(() => home.dispose());

it('ends a gateway that does not answer yet with the last deployment', async () => {
  const started = await home.run(['gateway', 'start']);
  expect(started.code, started.stderr).toBe(0);
  const gateway = join(home.folder, '.hpcserve/local/gateway');
  const identity = JSON.parse(readFileSync(join(gateway, 'process.json'), 'utf8')) as ProcessIdentity;
  // As long as it starts, it has not said where it answers.
  rmSync(join(gateway, gatewayFiles.endpoint));
  const stopped = await home.run(['stop', '--all', '--yes']);
  expect(stopped.code, stopped.stderr).toBe(0);
  const left = isAlive(identity);
  if (left) process.kill(identity.pid, 'SIGKILL');
  expect(left).toBe(false);
}, 60_000);

it.each([
  [['--all', '--yes'], '--all'],
  [['--keep-gateway'], '--keep-gateway'],
])('ends nothing where --gateway is typed with %s', async (options, refused) => {
  const started = await home.run(['gateway', 'start']);
  expect(started.code, started.stderr).toBe(0);
  try {
    const stopped = await home.run(['stop', '--gateway', ...options]);
    expect(stopped.code, stopped.stderr).toBe(2);
    expect(stopped.stderr).toContain(`error: ${refused} and --gateway contradict each other [E_USAGE]`);
    expect((await home.run(['gateway', 'list'])).stdout).toContain('running');
  } finally {
    await home.run(['stop', '--gateway']);
  }
});

it('--all ends the others where the state of some cannot be read, and says which', async () => {
  const store = new DeploymentStore(stateLayout(join(home.folder, '.hpcserve'), 'local'));
  const given = (name: string): void => {
    store.prepareDeployment(name);
    store.write(deploymentState([launchRecord(1, { phase: 'ended' })], { name, kept: true }));
  };
  const damage = (name: string): void => writeFileSync(join(store.folder(name), 'deployment.json'), '{');
  for (const name of ['a', 'broken', 'm', 'torn', 'z']) given(name);
  damage('broken');
  const stopped = await home.run(['stop', '--all', '--yes']);
  expect(stopped.code, stopped.stderr).toBe(12);
  expect(stopped.stderr).toMatch(/error: .*broken.*\[E_DEPLOYMENT_STATE\]/);
  // Once before that, though it was there at the end of each of the others.
  expect(stopped.stderr.match(/warning: .*broken/g)).toHaveLength(1);
  for (const name of ['a', 'm', 'torn', 'z']) expect(store.require(name).desired).toBe('stopped');
  damage('torn');
  const again = await home.run(['stop', '--all', '--yes']);
  expect(again.code, again.stderr).toBe(8);
  expect(again.stderr).toContain('error: 2 of 5 deployments were not ended [E_DEPLOYMENT_STOP]');
  for (const name of ['broken', 'torn']) expect(again.stderr).toMatch(new RegExp(`because: ${name}: `));
}, 60_000);
