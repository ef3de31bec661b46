/** The gateway as the process it is: its files, its port, its lock, its end. */
import { mkdtempSync, readFileSync, rmSync, statSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import Database from 'better-sqlite3';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { openLedgerReader } from '../../ledger/index.ts';
import { RendezvousRegistry } from '../../mesh/index.ts';
import { type GatewayConfig, type GatewayEndpoint, gatewayFiles } from '../../spec/state-layout.ts';
import { GatewayProcess } from './gateway-process.ts';
import { chatAnswer, json, TestSession, testConfig, until } from './support.ts';

let folder: string;
let config: GatewayConfig;
let registry: RendezvousRegistry;
const started = new Set<GatewayProcess>();

beforeEach(async () => {
  folder = mkdtempSync(join(tmpdir(), 'hpcserve-gateway-process-'));
  config = testConfig(folder);
  registry = await RendezvousRegistry.open(config.mesh_folder, { create: true, poll_ms: 50 });
});

afterEach(async () => {
  for (const gateway of started) await gateway.end('SIGKILL');
  started.clear();
  await registry.close();
  rmSync(folder, { recursive: true, force: true });
});

function start(change: Partial<GatewayConfig> = {}): GatewayProcess {
  const gateway = new GatewayProcess({ ...config, ...change });
  started.add(gateway);
  return gateway;
}

function ask({ url }: GatewayEndpoint, key: string, request_id = 'req'): Promise<Response> {
  return fetch(`${url}/v1/chat/completions`, {
    method: 'POST',
    headers: { authorization: `Bearer ${key}`, 'x-request-id': request_id },
    body: JSON.stringify({ model: 'tiny', messages: [] }),
  });
}

it('keeps port, keys and admin token over restarts; its secrets are for its owner', async () => {
  const first = start();
  const endpoint = await first.listening();
  const { key } = await first.newKey(endpoint);
  const token = readFileSync(join(config.gateway_folder, gatewayFiles.admin_token), 'utf8');
  for (const file of [gatewayFiles.admin_token, gatewayFiles.ledger, gatewayFiles.endpoint]) {
    expect(statSync(join(config.gateway_folder, file)).mode & 0o077).toBe(0);
  }
  await until(() => registry.get(endpoint.session_id)?.lifecycle === 'SERVING', 'its record');
  first.child.kill('SIGTERM');
  expect(await first.exit).toBe(0);
  await until(() => registry.get(endpoint.session_id)?.lifecycle === 'LEFT', 'it to have left');
  const second = start();
  const again = await second.listening();
  expect(again.port).toBe(endpoint.port);
  expect(readFileSync(join(config.gateway_folder, gatewayFiles.admin_token), 'utf8')).toBe(token);
  expect(
    (await fetch(`${again.url}/v1/models`, { headers: { authorization: `Bearer ${key}` } })).status,
  ).toBe(200);
  expect(first.stdout + second.stdout).not.toContain(token.trim());
});

it('refuses a second one on its folder and says who holds it; a killed one does not block the next', async () => {
  const first = start();
  await first.listening();
  const second = start();
  expect(await second.exit).toBe(10);
  expect(second.stderr).toContain('E_GATEWAY_RUNNING');
  expect(second.stderr).toContain(`process ${first.child.pid} on `);
  first.child.kill('SIGKILL');
  await first.exit;
  const third = start();
  expect((await third.listening()).pid).toBe(third.child.pid);
});

it('takes the next port where the last one is taken, and refuses where the user chose it', async () => {
  const first = start();
  const { port } = await first.listening();
  first.child.kill('SIGTERM');
  await first.exit;
  const squatter = createServer();
  await new Promise<void>((resolve) => squatter.listen(port, '127.0.0.1', resolve));
  try {
    const second = start();
    const moved = await second.listening();
    expect(moved.port).toBeGreaterThan(port);
    expect(second.stdout).toContain('the port of the last run is taken');
    second.child.kill('SIGTERM');
    await second.exit;
    const fixed = start({ port });
    expect(await fixed.exit).toBe(12);
    expect(fixed.stderr).toContain(`cannot listen on 127.0.0.1:${port}`);
  } finally {
    squatter.close();
  }
});

it('says what is wrong with its config', async () => {
  const wrong = start({ port: 70_000 });
  expect(await wrong.exit).toBe(3);
  expect(wrong.stderr).toContain('port');
});

it('lets answers end on SIGTERM, however often it is told, and takes no new requests', async () => {
  const gateway = start();
  const { child, exit } = gateway;
  const endpoint = await gateway.listening();
  const { key } = await gateway.newKey(endpoint);
  let release = (): void => {};
  const released = new Promise<void>((resolve) => {
    release = resolve;
  });
  const session = await TestSession.start(registry, async (request, response) => {
    await released;
    await json(chatAnswer)(request, response);
  });
  try {
    await until(async () => {
      const models = await fetch(`${endpoint.url}/v1/models`, {
        headers: { authorization: `Bearer ${key}` },
      });
      return (await models.text()).includes('tiny');
    }, 'the model');
    const answer = ask(endpoint, key);
    await until(() => session.requests.length === 1, 'the request');
    child.kill('SIGTERM');
    await until(
      () =>
        fetch(`${endpoint.url}/health`).then(
          (health) => health.status === 503,
          () => true,
        ),
      'it to refuse',
    );
    child.kill('SIGTERM');
    await expect(Promise.race([exit, delay(500)])).resolves.toBeUndefined();
    release();
    expect((await answer).status).toBe(200);
    expect(await exit).toBe(0);
  } finally {
    await session.kill();
  }
});

it('has every answered request in the ledger after kill -9', async () => {
  const gateway = start();
  const { child, exit } = gateway;
  const endpoint = await gateway.listening();
  const { key } = await gateway.newKey(endpoint);
  const session = await TestSession.start(registry, json(chatAnswer));
  try {
    await until(async () => (await ask(endpoint, key)).status === 200, 'the model');
    const answered: string[] = [];
    let killed = false;
    const lane = async (name: string): Promise<void> => {
      for (let index = 0; !killed; index++) {
        const request_id = `${name}-${index}`;
        const text = await ask(endpoint, key, request_id)
          .then(
            (answer) => answer.text(),
            () => undefined,
          )
          .catch(() => undefined);
        if (text === JSON.stringify(chatAnswer)) answered.push(request_id);
      }
    };
    const lanes = ['a', 'b', 'c', 'd', 'e', 'f'].map(lane);
    await until(() => answered.length > 300, 'three hundred answers', 60_000);
    child.kill('SIGKILL');
    await exit;
    killed = true;
    await Promise.all(lanes);
    const path = join(config.gateway_folder, gatewayFiles.ledger);
    // Who reads a ledger that nobody writes takes what its gateway had not moved into tables.
    const reader = openLedgerReader(path);
    const db = new Database(path, { readonly: true });
    const present = new Set(db.prepare('SELECT request_id FROM requests').pluck().all());
    expect(answered.filter((id) => !present.has(id))).toEqual([]);
    expect(
      db.prepare('SELECT DISTINCT node, job_id, deployment FROM requests WHERE node IS NOT NULL').all(),
    ).toEqual([{ node: 'node1', job_id: '4711', deployment: 'demo' }]);
    db.close();
    expect(
      reader.usage({ group_by: ['deployment'] }).find(({ group }) => group.deployment === 'demo')!.requests,
    ).toBeGreaterThanOrEqual(answered.length);
    reader.close();
  } finally {
    await session.kill();
  }
}, 120_000);
