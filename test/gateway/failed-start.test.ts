/** A gateway whose start fails, at each of its parts: nothing is left of it, and the next one starts. */
import { AsyncLocalStorage, createHook } from 'node:async_hooks';
import { chmodSync, existsSync, mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { createServer, type Server } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import Database from 'better-sqlite3';
import { pino } from 'pino';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { type RunningGateway, startGateway } from '../../gateway/gateway.ts';
import { RendezvousRegistry } from '../../mesh/index.ts';
import type { ErrorCode } from '../../spec/errors/registry.ts';
import { type GatewayConfig, gatewayFiles } from '../../spec/state-layout.ts';
import { freePort } from '../free-port.ts';
import { chatAnswer, json, TestSession, testConfig, until } from './support.ts';

let folder: string;
let config: GatewayConfig;
let registry: RendezvousRegistry;
let session: TestSession;
let squatter: Server | undefined;
beforeEach(async () => {
  folder = mkdtempSync(join(tmpdir(), 'hpcserve-failed-start-'));
  config = testConfig(folder);
  mkdirSync(config.gateway_folder, { mode: 0o700 });
  registry = await RendezvousRegistry.open(config.mesh_folder, { create: true, poll_ms: 50 });
  // One that gateways make a link to.
  session = await TestSession.start(registry, json(chatAnswer));
});
afterEach(async () => {
  await session.stop();
  await registry.close();
  const server = squatter;
  squatter = undefined;
  if (server) await new Promise((resolve) => server.close(resolve));
  rmSync(folder, { recursive: true, force: true });
});

const log = pino({ level: 'silent' });
const times = { poll_ms: 50, drain_ms: 1000, keys_ms: 50, limits_ms: 50 };
const start = (change: Partial<GatewayConfig> = {}): Promise<RunningGateway> =>
  startGateway({ ...config, ...change }, { log, times });

/** What keeps something going: timers, and what listens, is connected or is watched. */
const lasting = /^(Timeout|TCPSERVERWRAP|PIPESERVERWRAP|TCPWRAP|PIPEWRAP|FSEVENTWRAP|STATWATCHER|WORKER)$/;

/** Runs something, and says what of all that it began has not ended yet. */
async function began(run: () => Promise<void>): Promise<() => string[]> {
  const inside = new AsyncLocalStorage<true>();
  const alive = new Map<number, string>();
  const hook = createHook({
    init: (id, type) => {
      if (lasting.test(type) && inside.getStore()) alive.set(id, `${type} ${new Error().stack}`);
    },
    destroy: (id) => void alive.delete(id),
  }).enable();
  await inside.run(true, run);
  return () => {
    if (alive.size === 0) hook.disable();
    return [...alive.values()];
  };
}

/** Makes a file in the gateway's folder something that cannot be read. @returns what mends it */
function spoil(name: string): () => void {
  const path = join(config.gateway_folder, name);
  mkdirSync(path);
  return () => rmSync(path, { recursive: true });
}

/** By part: brings about its failure, and gives the config that has it and what takes it back. */
const failures: Record<
  string,
  [ErrorCode, () => Promise<{ change?: Partial<GatewayConfig>; mend?: () => void }>]
> = {
  'the admin token': ['E_GATEWAY_FOLDER', async () => ({ mend: spoil(gatewayFiles.admin_token) })],
  'the ledger': [
    'E_LEDGER_VERSION',
    async () => {
      const path = join(config.gateway_folder, gatewayFiles.ledger);
      const ledger = new Database(path);
      ledger.pragma('user_version = 999');
      ledger.close();
      return { mend: () => rmSync(path) };
    },
  ],
  'the keys': [
    'E_KEY_FOLDER',
    async () => {
      const keys_folder = join(folder, 'no-folder');
      writeFileSync(keys_folder, '');
      return { change: { keys_folder } };
    },
  ],
  'the folder of the mesh': [
    'E_MESH_FOLDER',
    async () => {
      const mesh_folder = join(folder, 'no-folder');
      writeFileSync(mesh_folder, '');
      return { change: { mesh_folder } };
    },
  ],
  'the key of its provider': [
    'E_PROVIDER_KEY',
    async () => {
      const provider_key_file = join(folder, 'no.key');
      writeFileSync(provider_key_file, 'no key', { mode: 0o600 });
      return { change: { provider_key_file } };
    },
  ],
  'the endpoint of the gateway before it': [
    'E_GATEWAY_FOLDER',
    async () => ({ mend: spoil(gatewayFiles.endpoint) }),
  ],
  'the certificate for clients': [
    'E_GATEWAY_CONFIG',
    async () => ({
      change: { tls: { certificate_file: join(folder, 'none'), key_file: join(folder, 'none') } },
    }),
  ],
  'the port': [
    'E_GATEWAY_PORT',
    async () => {
      const port = await freePort();
      squatter = createServer();
      await new Promise<void>((resolve) => squatter!.listen(port, '127.0.0.1', resolve));
      return { change: { port } };
    },
  ],
  'the unix socket': [
    'E_GATEWAY_PORT',
    async () => {
      const open = join(folder, 'open');
      mkdirSync(open);
      chmodSync(open, 0o777);
      return { change: { port: await freePort(), socket: join(open, 's') } };
    },
  ],
};

it.each(Object.entries(failures))('leaves nothing where %s is what fails', async (_, [code, prepare]) => {
  const { change, mend } = await prepare();
  const left = await began(async () => {
    await expect(start(change)).rejects.toMatchObject({ code });
  });
  await until(() => left().length === 0, `the end of ${left().join('\n\n')}`, 5000);
  expect(existsSync(join(config.gateway_folder, 'gateway.lock'))).toBe(false);
  expect(readdirSync(config.gateway_folder).filter((name) => name.endsWith('.tmp'))).toEqual([]);
  await registry.refresh();
  const gateways = registry.snapshot().filter(({ metadata }) => metadata.role === 'gateway');
  expect(gateways.filter(({ lifecycle }) => lifecycle !== 'LEFT')).toEqual([]);
  if (change?.port !== undefined && !squatter) {
    squatter = createServer();
    await new Promise<void>((resolve, reject) => {
      squatter!.once('error', reject);
      squatter!.listen(change.port, '127.0.0.1', resolve);
    });
  }
  mend?.();
  const gateway = await start();
  expect((await fetch(`${gateway.endpoint.url}/health`)).status).toBe(200);
  await gateway.close();
});

it('leaves nothing where the folder is another gateway’s', async () => {
  const other = await start();
  const left = await began(async () => {
    await expect(start()).rejects.toMatchObject({ code: 'E_GATEWAY_RUNNING' });
  });
  await until(() => left().length === 0, `the end of ${left().join('\n\n')}`, 5000);
  expect((await fetch(`${other.endpoint.url}/health`)).status).toBe(200);
  await other.close();
});

it('leaves nothing when it has closed', async () => {
  const left = await began(async () => {
    const gateway = await start({ socket: join(folder, 'run', 's') });
    await Promise.all([gateway.close(), gateway.close()]);
  });
  await until(() => left().length === 0, `the end of ${left().join('\n\n')}`, 5000);
  expect(existsSync(join(folder, 'run', 's'))).toBe(false);
  expect(existsSync(join(config.gateway_folder, 'gateway.lock'))).toBe(false);
});
