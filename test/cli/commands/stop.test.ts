/** What `hpcserve stop` leaves behind: nothing, also of what had only begun. */
import { readFileSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { isAlive, type ProcessIdentity } from '../../../host/process-identity.ts';
import { gatewayFiles } from '../../../spec/state-layout.ts';
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
