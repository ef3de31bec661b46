/** Two gateways of one site as the processes they are: one key, one budget, and one of them killed. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import Database from 'better-sqlite3';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { openLedgerReader } from '../../ledger/index.ts';
import { RendezvousRegistry } from '../../mesh/index.ts';
import { gatewayFolderOf } from '../../spec/gateway-folders.ts';
import type { KeySettings } from '../../spec/key-settings.ts';
import { gatewayFiles, stateLayout } from '../../spec/state-layout.ts';
import { readMeasuredWorkload } from '../../spec/workload.ts';
import { GatewayProcess } from './gateway-process.ts';
import { TestSession, testConfig, until } from './support.ts';

const prompt_tokens = 12;
const completion_tokens = 8;
const perAnswer = prompt_tokens + completion_tokens;
/** As docs/gateway.md promises: two exchanges of a second each, on a filesystem that shows files at once. */
const stale_ms = 2000;

let folder: string;
let registry: RendezvousRegistry;
let replica: TestSession;
const started = new Set<GatewayProcess>();

beforeEach(async () => {
  folder = mkdtempSync(join(tmpdir(), 'hpcserve-gateways-test-'));
  registry = await RendezvousRegistry.open(stateLayout(folder, 'test').mesh_folder, {
    create: true,
    poll_ms: 50,
  });
  replica = await TestSession.start(registry, (_request, response) => {
    response.writeHead(200, { 'content-type': 'application/json' });
    response.end(
      JSON.stringify({ choices: [], usage: { prompt_tokens, completion_tokens, total_tokens: perAnswer } }),
    );
  });
  replica.load = { max_sequences: 64 };
});

afterEach(async () => {
  for (const gateway of started) await gateway.end('SIGKILL');
  started.clear();
  await replica.kill();
  await registry.close();
  rmSync(folder, { recursive: true, force: true });
});

interface Gateway {
  process: GatewayProcess;
  url: string;
  folder: string;
  newKey(settings: KeySettings): Promise<{ id: string; key: string }>;
  admin(path: string, init?: { method: string; body: unknown }): Promise<Response>;
}

async function start(number: number): Promise<Gateway> {
  const { root, mesh_folder, deployments_folder, keys_folder } = stateLayout(folder, 'test');
  const gateway_folder = gatewayFolderOf(root, number);
  const gateway = new GatewayProcess(
    testConfig(folder, { mesh_folder, gateway_folder, deployments_folder, keys_folder }),
  );
  started.add(gateway);
  const endpoint = await gateway.listening();
  const admin: Gateway['admin'] = (path, init) => gateway.admin(endpoint, path, init);
  await until(async () => {
    const { sessions } = (await (await admin('/mesh/table')).json()) as {
      sessions: { reachable: boolean }[];
    };
    return sessions.some(({ reachable }) => reachable);
  }, `gateway ${number} to reach the replica`);
  return {
    process: gateway,
    url: endpoint.url,
    folder: gateway_folder,
    newKey: (settings) => gateway.newKey(endpoint, settings),
    admin,
  };
}

interface Sent {
  request_id: string;
  status: number;
  at_ms: number;
  retry_after?: string | null;
  error?: { code: string; message: string };
}

let requests = 0;
async function ask(url: string, key: string): Promise<Sent> {
  const request_id = `test-${requests++}`;
  const answer = await fetch(`${url}/v1/chat/completions`, {
    method: 'POST',
    headers: {
      authorization: `Bearer ${key}`,
      'content-type': 'application/json',
      'x-request-id': request_id,
    },
    body: JSON.stringify({ model: 'tiny', messages: [{ role: 'user', content: 'x' }] }),
  });
  const json = (await answer.json()) as { error?: Sent['error'] };
  return {
    request_id,
    status: answer.status,
    at_ms: performance.now(),
    retry_after: answer.headers.get('retry-after'),
    ...(json.error ? { error: json.error } : {}),
  };
}

/** Asks every `pause_ms` until it is refused, or `enough` says so; returns what was answered, and the refusal. */
async function askUntilRefused(
  url: string,
  key: string,
  pause_ms: number,
): Promise<{ answered: Sent[]; refused: Sent }> {
  const answered: Sent[] = [];
  for (;;) {
    const sent = await ask(url, key);
    if (sent.status !== 200) return { answered, refused: sent };
    answered.push(sent);
    await delay(pause_ms);
  }
}

function recorded(gateways: readonly { folder: string }[]): Set<string> {
  const ids = gateways.flatMap((gateway) => {
    const path = join(gateway.folder, gatewayFiles.ledger);
    // A reader waits until what was answered is in the tables.
    openLedgerReader(path).close();
    const db = new Database(path, { readonly: true });
    try {
      return db.prepare('SELECT request_id FROM requests').pluck().all() as string[];
    } finally {
      db.close();
    }
  });
  expect(new Set(ids).size).toBe(ids.length);
  return new Set(ids);
}

it('a budget holds over both, within what may be asked until one knows of the other', async () => {
  const [one, two] = await Promise.all([start(1), start(2)]);
  const budget = 100 * perAnswer;
  const { key, id } = await one.newKey({ budget: { tokens: budget, window: 'total' } });
  // The other gateway has not looked yet, and takes the key all the same.
  const [first, second] = await Promise.all([
    askUntilRefused(one.url, key, 40),
    askUntilRefused(two.url, key, 40),
  ]);
  for (const { refused } of [first, second]) {
    expect(refused).toMatchObject({ status: 429, error: { code: 'insufficient_quota' }, retry_after: null });
    expect(refused.error!.message).toContain(`of ${budget} tokens were used`);
  }
  const answered = [...first.answered, ...second.answered].sort((a, b) => a.at_ms - b.at_ms);
  const used = answered.length * perAnswer;
  expect(used).toBeGreaterThanOrEqual(budget);
  // Over it is at most what was answered from the moment when it was used up until the last could know.
  const usedUp_ms = answered[budget / perAnswer - 1]!.at_ms;
  expect(answered.at(-1)!.at_ms - usedUp_ms).toBeLessThan(stale_ms + 500);
  expect(first.answered.length).toBeGreaterThan(10);
  expect(second.answered.length).toBeGreaterThan(10);
  // Each says the same of it, and each has its own in its own ledger.
  await until(async () => {
    const spent = await Promise.all(
      [one, two].map(async (gateway) => {
        const { keys } = (await (await gateway.admin('/hpcserve/v1/keys')).json()) as {
          keys: { id: string; spent?: { total_tokens: number } }[];
        };
        return keys.find((each) => each.id === id)?.spent?.total_tokens;
      }),
    );
    return spent.every((tokens) => tokens === used);
  }, 'both gateways to know what was used');
  expect([...recorded([one, two])].sort()).toEqual(answered.map(({ request_id }) => request_id).sort());

  // More budget given at one gateway counts at the other.
  const changes = { budget: { tokens: 2 * used + 1000, window: 'total' } };
  await one.admin(`/hpcserve/v1/keys/${id}`, { method: 'PATCH', body: changes });
  await until(
    async () => (await ask(two.url, key)).status === 200,
    'the other gateway to know the new budget',
  );
  // So does a revocation.
  await two.admin(`/hpcserve/v1/keys/${id}`, { method: 'DELETE', body: {} });
  expect((await ask(two.url, key)).status).toBe(401);
  await until(async () => (await ask(one.url, key)).status === 401, 'the revocation to be known');
}, 120_000);

it('one is killed: the other serves on, nothing that was answered is lost, and its budget still counts', async () => {
  const [one, two] = await Promise.all([start(1), start(2)]);
  const budget = 1_000_000;
  const { key, id } = await two.newKey({ budget: { tokens: budget, window: 'total' } });
  const answered: string[] = [];
  let killed = false;
  /** Asks one gateway, and the other where it does not answer, as clients with two URLs do. */
  const client = async (count: number): Promise<void> => {
    for (let sent = 0; sent < count; sent++) {
      let reply: Sent;
      try {
        reply = await ask(killed ? two.url : one.url, key);
      } catch (error) {
        // fetch says no more than this of a connection that ends; before the kill it would be a failure.
        if (!killed || !(error instanceof TypeError)) throw error;
        reply = await ask(two.url, key);
      }
      expect(reply.status).toBe(200);
      answered.push(reply.request_id);
    }
  };
  const clients = Promise.all(Array.from({ length: 8 }, () => client(60)));
  await until(() => answered.length >= 200, 'a good part to be answered', 60_000);
  killed = true;
  await one.process.end('SIGKILL');
  await clients;
  expect(answered).toHaveLength(480);

  const again = await start(1);
  const kept = recorded([again, two]);
  expect(answered.filter((request_id) => !kept.has(request_id))).toEqual([]);
  // What the killed one had answered counts, from its ledger, at both.
  const total = kept.size * perAnswer;
  for (const gateway of [again, two]) {
    await until(async () => {
      const { keys } = (await (await gateway.admin('/hpcserve/v1/keys')).json()) as {
        keys: { id: string; spent?: { total_tokens: number } }[];
      };
      return keys.find((each) => each.id === id)?.spent?.total_tokens === total;
    }, 'all that was used to be counted');
  }
  // What they measured is there for who plans, of both together.
  await again.process.end('SIGTERM');
  await two.process.end('SIGTERM');
  const workload = readMeasuredWorkload(stateLayout(folder, 'test').root).get('tiny')!;
  expect(workload.input_tokens).toBeCloseTo(prompt_tokens, 6);
  expect(workload.output_tokens).toBeCloseTo(completion_tokens, 6);
  expect(workload.requests).toBeGreaterThan(100);
}, 150_000);
