/** The gateway as commands start it: a real process, on a folder that does not answer for a while. */
import { execFileSync } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { type AddressInfo, createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { isGatewayDesired } from '../../../control/gateway/gateway.ts';
import { inspectGateway, startGatewayProcess, stopGatewayProcess } from '../../../control/gateway/process.ts';
import { childrenOf, identityOf, isAlive, type ProcessIdentity } from '../../../host/process-identity.ts';
import { gatewayFiles, type StateLayout, stateLayout } from '../../../spec/state-layout.ts';
import { site } from '../support.ts';

let folder: string;
let layout: StateLayout;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'hpcserve-late-'));
  layout = stateLayout(folder, 'local');
});
afterEach(async () => {
  await stopGatewayProcess(layout);
  rmSync(folder, { recursive: true, force: true });
});

it('one that starts too late is ended, and the next one starts', async () => {
  // Whoever opens a pipe that nobody writes to waits, as on a filesystem that is away.
  mkdirSync(layout.gateway_folder, { recursive: true, mode: 0o700 });
  const away = join(layout.gateway_folder, gatewayFiles.workload);
  execFileSync('mkfifo', [away]);
  const file = join(layout.gateway_folder, gatewayFiles.process);
  const late = startGatewayProcess(site, layout, undefined, undefined, 2000);
  const told = expect(late).rejects.toMatchObject({
    code: 'E_GATEWAY_START',
    because: expect.arrayContaining(['it did not answer within 2 s']),
  });
  await expect.poll(() => existsSync(file)).toBe(true);
  const identity = JSON.parse(readFileSync(file, 'utf8')) as ProcessIdentity;
  await expect.poll(() => childrenOf(identity.pid)).toHaveLength(1);
  const gateway = identityOf(childrenOf(identity.pid)[0]!)!;
  await told;
  expect(isAlive(identity)).toBe(false);
  await expect.poll(() => isAlive(gateway)).toBe(false);
  // It never ran: nobody is to start it again.
  expect(existsSync(file)).toBe(false);
  expect((await inspectGateway(layout)).state).toBe('not_running');

  rmSync(away);
  const endpoint = await startGatewayProcess(site, layout);
  expect(endpoint.pid).not.toBe(identity.pid);
  expect(await inspectGateway(layout)).toMatchObject({ state: 'running', endpoint: { pid: endpoint.pid } });
});

it('one that cannot start is told in the words of its log', async () => {
  mkdirSync(join(layout.gateway_folder, gatewayFiles.ledger), { recursive: true, mode: 0o700 });
  const failed = await startGatewayProcess(site, layout).catch((error: unknown) => error);
  expect(failed).toMatchObject({ code: 'E_GATEWAY_START' });
  expect((failed as { because: string[] }).because.join('\n')).toMatch(
    /ended with exit code \d+[\s\S]*ledger/,
  );
});

it('one at an address that cannot be had is not started again, and the next one may be elsewhere', async () => {
  const taken = createServer().listen(0, '127.0.0.1');
  try {
    await once(taken, 'listening');
    const { port } = taken.address() as AddressInfo;
    for (const address of [{ port }, { host: '10.9.9.9' }]) {
      const refused = startGatewayProcess(site, layout, undefined, address);
      await expect(refused).rejects.toMatchObject({ code: 'E_GATEWAY_START' });
      expect(isGatewayDesired(layout)).toBe(false);
    }
    const endpoint = await startGatewayProcess(site, layout);
    expect(endpoint.port).not.toBe(port);
    expect(isGatewayDesired(layout)).toBe(true);
  } finally {
    taken.close();
  }
}, 60_000);
