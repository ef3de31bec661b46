/**
 * Nobody else has the port of a gateway while the gateway is meant to run, whatever becomes of its processes: real
 * ones, beside another user of the machine who tries to listen there.
 */
import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import {
  existsSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { get } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { connect } from 'node:tls';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { GatewayAdmin, listModels } from '../../control/gateway/admin.ts';
import { restartGateway } from '../../control/gateway/gateway.ts';
import {
  inspectGateway,
  readAdminToken,
  startGatewayProcess,
  stopGatewayProcess,
} from '../../control/gateway/process.ts';
import { warningLines } from '../../control/gateway/warnings.ts';
import { type Operations, openOperations } from '../../control/runner/operations.ts';
import { isAlive, type ProcessIdentity, readProcessStat } from '../../host/process-identity.ts';
import { compiledFile } from '../../host/programs.ts';
import { siteSchema } from '../../spec/site.ts';
import {
  type GatewayEndpoint,
  gatewayFiles,
  type StateLayout,
  stateLayout,
} from '../../spec/state-layout.ts';
import { site } from '../control/support.ts';

const root = process.getuid?.() === 0;
/**
 * `nobody` where the test may say who asks, else the same user: the kernel makes no difference but in whom it tells.
 */
const other = root ? { uid: 65_534, gid: 65_534 } : {};

let folder: string;
let layout: StateLayout;
const children: ChildProcess[] = [];
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'hpcserve-port-'));
  layout = stateLayout(folder, 'local');
});
afterEach(async () => {
  for (const child of children.splice(0)) child.kill('SIGKILL');
  await stopGatewayProcess(layout);
  rmSync(folder, { recursive: true, force: true });
});

const endpointNow = (): GatewayEndpoint =>
  JSON.parse(readFileSync(join(layout.gateway_folder, gatewayFiles.endpoint), 'utf8'));
const holderNow = (): ProcessIdentity =>
  JSON.parse(readFileSync(join(layout.gateway_folder, gatewayFiles.process), 'utf8'));
const state = async (): Promise<string> => (await inspectGateway(layout)).state;
const newKey = async (endpoint: GatewayEndpoint): Promise<string> =>
  (await new GatewayAdmin(endpoint, readAdminToken(layout)).createKey('tester')).key;

/** Another user who listens as soon as he can, and says so; he asks again at once where he cannot. */
async function squatter(port: number): Promise<{ took: () => boolean; tries: () => number }> {
  const script = `
    const { createServer } = require('node:net');
    const port = Number(process.argv[1]);
    let tries = 0;
    setInterval(() => console.log('tries ' + tries), 100).unref();
    const attempt = () => {
      const server = createServer((socket) => socket.end());
      tries++;
      server.once('error', () => setImmediate(attempt));
      server.listen(port, '127.0.0.1', () => console.log('took it'));
    };
    attempt();`;
  const child = spawn(process.execPath, ['-e', script, String(port)], {
    ...other,
    cwd: '/',
    env: { PATH: '/usr/bin:/bin' },
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  children.push(child);
  let said = '';
  child.stdout!.on('data', (chunk: Buffer) => {
    said += chunk.toString();
  });
  await once(child.stdout!, 'data');
  return {
    took: () => said.includes('took it'),
    tries: () => Number(/.*tries (\d+)/s.exec(said)?.[1] ?? 0),
  };
}

/** One request on a connection of its own. @returns the status, or the system's word for why there is none */
function ask(url: string, key: string): Promise<number | string> {
  return new Promise((resolve) => {
    get(
      new URL('/v1/models', url),
      { agent: false, headers: { authorization: `Bearer ${key}` } },
      (answer) => {
        answer.resume().once('end', () => resolve(answer.statusCode ?? 0));
        answer.once('error', (error: NodeJS.ErrnoException) => resolve(error.code ?? error.message));
      },
    ).once('error', (error: NodeJS.ErrnoException) => resolve(error.code ?? error.message));
  });
}

function operationsNow(): Operations {
  return openOperations({
    loaded: { site, path: '/site.yaml', layout, provenance: () => undefined } as Operations['loaded'],
    facts: { user: 'someone', environment: {} },
    command: 'test',
    now_ms: Date.now,
    emit: () => {},
    signal: new AbortController().signal,
  });
}

it('a gateway that is killed under load keeps its port from others and its clients from being refused', async () => {
  const { url, port } = await startGatewayProcess(site, layout);
  const key = await newKey(endpointNow());
  const rival = await squatter(port);
  // What the keeper does all the time.
  const operations = operationsNow();
  let over = false;
  const keeper = (async () => {
    while (!over) {
      await restartGateway(operations, 1);
      await new Promise((resolve) => setTimeout(resolve, 500));
    }
  })();
  const asked: { began_ms: number; result: number | string; took_ms: number }[] = [];
  const clients = [1, 2, 3, 4].map(async () => {
    while (!over) {
      const began_ms = performance.now();
      const result = await ask(url, key);
      asked.push({ began_ms, result, took_ms: performance.now() - began_ms });
    }
  });
  const kills: number[] = [];
  for (let kill = 0; kill < 3; kill++) {
    const { pid } = endpointNow();
    const before = asked.length;
    await expect.poll(() => asked.length, { timeout: 20_000 }).toBeGreaterThan(before + 20);
    kills.push(performance.now());
    process.kill(pid, 'SIGKILL');
    await expect.poll(() => endpointNow().pid, { timeout: 20_000 }).not.toBe(pid);
    await expect.poll(state, { timeout: 20_000 }).toBe('running');
  }
  over = true;
  await Promise.all([...clients, keeper]);
  expect(rival.took()).toBe(false);
  expect(rival.tries()).toBeGreaterThan(1000);
  expect(endpointNow().port).toBe(port);
  // Those that were killed are told to have left by those that took their places.
  const table = await fetch(`${url}/mesh/table`, { headers: { authorization: `Bearer ${key}` } });
  const { gateways } = (await table.json()) as { gateways: { session_id: string }[] };
  expect(gateways.map(({ session_id }) => session_id)).toEqual([endpointNow().session_id]);
  expect(asked.filter(({ result }) => result === 'ECONNREFUSED')).toEqual([]);
  // What the killed gateway had accepted already ends with it; all else waits and is answered.
  const lost = asked.filter(({ result }) => result !== 200);
  for (const { began_ms, took_ms } of lost)
    expect(kills.some((at_ms) => at_ms >= began_ms && at_ms <= began_ms + took_ms + 50)).toBe(true);
  expect(lost.length).toBeLessThanOrEqual(kills.length * clients.length);
  expect(asked.some(({ began_ms, took_ms }) => kills.some((at) => began_ms > at && took_ms > 100))).toBe(
    true,
  );
}, 120_000);

it('a holder that is killed is replaced by the gateway, whose streams go on; the port is held again', async () => {
  const { url, port, pid, process: started } = await startGatewayProcess(site, layout);
  const key = await newKey(endpointNow());
  const rival = await squatter(port);
  const first = holderNow();
  expect(readProcessStat(pid)?.parent).toBe(first.pid);
  process.kill(first.pid, 'SIGKILL');
  await expect.poll(() => holderNow().pid, { timeout: 10_000, interval: 1 }).not.toBe(first.pid);
  const second = holderNow();
  // The worst moment: it holds the socket and has not begun to run its program.
  process.kill(second.pid, 'SIGSTOP');
  expect(isAlive(second)).toBe(true);
  expect(await state()).toBe('running');
  expect(endpointNow().pid).toBe(pid);
  expect(heldSockets(second.pid)).toBe(1);
  process.kill(pid, 'SIGKILL');
  // What it accepted while it died would end with it.
  await expect.poll(() => isAlive({ pid, ...started! }), { timeout: 5000 }).toBe(false);
  process.kill(second.pid, 'SIGCONT');
  expect(await ask(url, key)).toBe(200);
  await expect.poll(state, { timeout: 20_000 }).toBe('running');
  expect(endpointNow().pid).not.toBe(pid);
  const last = [holderNow(), { pid: endpointNow().pid, ...endpointNow().process! }];
  expect(rival.took()).toBe(false);
  await stopGatewayProcess(layout);
  expect(last.map(isAlive)).toEqual([false, false]);
  // Only now it is anybody's.
  await expect.poll(rival.took, { timeout: 5000 }).toBe(true);
}, 90_000);

it('a gateway whose holder is gone before it listens has another one once it does', async () => {
  await startGatewayProcess(site, layout);
  const key = await newKey(endpointNow());
  const config = join(layout.gateway_folder, gatewayFiles.config);
  const files = [config, join(layout.gateway_folder, gatewayFiles.process)];
  const texts = files.map((file) => readFileSync(file, 'utf8'));
  await stopGatewayProcess(layout);
  // As a holder leaves them that is killed.
  for (const [index, file] of files.entries()) writeFileSync(file, texts[index]!, { mode: 0o600 });
  const script = `
    const { spawn } = require('node:child_process');
    const stdio = ['ignore', 'ignore', 'ignore', 'ipc'];
    const child = spawn(process.execPath, process.argv.slice(1), { stdio, detached: true });
    console.log(child.pid);
    process.exit(0);`;
  const argv = ['-e', script, compiledFile('gateway/main.js'), '--config', config];
  const { stdout } = spawnSync(process.execPath, argv, { encoding: 'utf8' });
  const pid = Number(stdout);
  await expect.poll(state, { timeout: 20_000 }).toBe('running');
  expect(endpointNow().pid).toBe(pid);
  await expect.poll(() => readProcessStat(holderNow().pid)?.parent, { timeout: 10_000 }).toBe(pid);
  const holder = holderNow();
  expect(heldSockets(holder.pid)).toBe(1);
  process.kill(pid, 'SIGKILL');
  await expect.poll(() => readProcessStat(pid)?.state ?? 'Z', { timeout: 5000 }).toBe('Z');
  expect(await ask(endpointNow().url, key)).toBe(200);
  await expect.poll(state, { timeout: 20_000 }).toBe('running');
}, 90_000);

it('with TLS and a unix socket, both are held: who asks while no gateway is there is answered by the next', async () => {
  const socket = join(folder, 'run/gateway.sock');
  const withBoth = siteSchema.parse({ ...site, gateway: { tls: { self_signed: true }, socket } });
  const first = await startGatewayProcess(withBoth, layout);
  const key = await newKey(first);
  for (let kill = 0; kill < 2; kill++) {
    const { pid } = endpointNow();
    await expect.poll(() => heldSockets(holderNow().pid), { timeout: 5000 }).toBe(1);
    process.kill(pid, 'SIGKILL');
    await expect.poll(() => isAlive({ pid, ...first.process! })).toBe(false);
    const answers = await Promise.all([
      askOnSocket(socket, key),
      connectTls(first.port).then((shown) => shown.length > 0),
    ]);
    expect(answers).toEqual([200, true]);
    await expect.poll(state, { timeout: 20_000 }).toBe('running');
    expect(endpointNow()).toMatchObject({ port: first.port, socket, ca_file: first.ca_file });
    const { url } = endpointNow();
    expect(await listModels({ ...endpointNow(), url: `${url}/v1` }, key)).toEqual([]);
  }
  await stopGatewayProcess(layout);
  expect(existsSync(socket)).toBe(false);
}, 90_000);

function askOnSocket(socketPath: string, key: string): Promise<number | string> {
  return new Promise((resolve) => {
    get(
      { socketPath, path: '/v1/models', agent: false, headers: { authorization: `Bearer ${key}` } },
      (answer) => answer.resume().once('end', () => resolve(answer.statusCode ?? 0)),
    ).once('error', (error: NodeJS.ErrnoException) => resolve(error.code ?? error.message));
  });
}

/** @returns the certificate that is shown */
function connectTls(port: number): Promise<Buffer> {
  return new Promise((resolve, reject) => {
    const tls = connect({ host: '127.0.0.1', port, rejectUnauthorized: false }, () => {
      resolve(tls.getPeerX509Certificate()!.raw);
      tls.destroy();
    });
    tls.once('error', reject);
  });
}

/** Listening TCP sockets that a process has open. */
function heldSockets(pid: number): number {
  const listening = new Set(
    readFileSync('/proc/net/tcp', 'utf8')
      .split('\n')
      .map((line) => line.trim().split(/\s+/))
      .flatMap((fields) => (fields[3] === '0A' ? [fields[9]] : [])),
  );
  return readdirSync(`/proc/${pid}/fd`).filter((fd) => {
    const inode = /^socket:\[(\d+)\]$/.exec(readlinkSync(`/proc/${pid}/fd/${fd}`))?.[1];
    return inode !== undefined && listening.has(inode);
  }).length;
}

it('a gateway that never came up is nobody to start again', async () => {
  await startGatewayProcess(site, layout);
  const second = { ...layout, gateway_folder: join(layout.root, 'gateway-2') };
  const { port } = endpointNow();
  const failed = await startGatewayProcess(site, second, undefined, { port }).catch(
    (error: unknown) => error,
  );
  expect(failed).toMatchObject({ code: 'E_GATEWAY_START' });
  expect((failed as { because: string[] }).because.join()).toMatch(/another process listens there/);
  expect(existsSync(join(second.gateway_folder, gatewayFiles.process))).toBe(false);
  expect(existsSync(join(second.gateway_folder, gatewayFiles.config))).toBe(false);
}, 60_000);

describe.skipIf(!root)('a port that another user has when the gateway comes back', () => {
  it('is said in the log, and to whoever deploys, until the keys that were shown there are revoked', async () => {
    const { port } = await startGatewayProcess(site, layout);
    await newKey(endpointNow());
    const holder = holderNow();
    const rival = await squatter(port);
    // Both at once: nobody holds it any more.
    process.kill(-holder.pid, 'SIGKILL');
    await expect.poll(rival.took, { timeout: 10_000 }).toBe(true);
    // A process that ends closes its sockets before it is gone.
    await expect.poll(state, { timeout: 10_000 }).toBe('not_running');
    const revived = await restartGateway(operationsNow(), 1);
    expect(revived).toMatchObject({ url: expect.stringMatching(/^http/) });
    const endpoint = endpointNow();
    expect(endpoint.port).not.toBe(port);
    const log = readFileSync(join(layout.gateway_folder, gatewayFiles.log), 'utf8');
    expect(log).toMatch(/another user had the port.*hpcserve keys revoke/);
    expect(log).toContain('"uid":65534');
    const admin = new GatewayAdmin(endpoint, readAdminToken(layout));
    const [shown] = await admin.listKeys();
    const lines = await warningLines(site, layout, endpoint);
    expect(lines).toHaveLength(1);
    expect(lines[0]).toContain(`port ${port} of the gateway was found taken by another user (id 65534)`);
    expect(lines[0]).toContain(`hpcserve keys revoke`);
    expect(lines[0]).toContain(shown!.id);
    const fresh = await newKey(endpoint);
    await admin.revokeKey(shown!.id);
    expect(await warningLines(site, layout, endpoint)).toEqual([]);
    expect(await listModels({ url: `${endpoint.url}/v1` }, fresh)).toEqual([]);
  }, 60_000);
});
