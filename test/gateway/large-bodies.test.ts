/** Large bodies at a gateway as the process it is: what they hold of it, and how long. */
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { connect, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { RendezvousRegistry } from '../../mesh/index.ts';
import type { KeySettings } from '../../spec/key-settings.ts';
import { type GatewayConfig, type GatewayEndpoint, stateLayout } from '../../spec/state-layout.ts';
import { GatewayProcess } from './gateway-process.ts';
import { chatAnswer, chunkEvent, doneEvent, TestSession, testConfig, until } from './support.ts';

const mib = 2 ** 20;
/** A gigabyte goes to the gateway, on a machine that is busy. */
const patience_ms = 60_000;
const path = '/v1/chat/completions';
let folder: string;
let registry: RendezvousRegistry;
let replica: TestSession;
let gateway: GatewayProcess;
let endpoint: GatewayEndpoint;
let url: string;

beforeEach(async () => {
  folder = mkdtempSync(join(tmpdir(), 'hpcserve-bodies-test-'));
  registry = await RendezvousRegistry.open(stateLayout(folder, 'test').mesh_folder, {
    create: true,
    poll_ms: 50,
  });
  replica = await TestSession.start(registry, async ({ body }, response) => {
    if (!body.includes('"stream":true')) {
      response.writeHead(200, { 'content-type': 'application/json' });
      response.end(JSON.stringify(chatAnswer));
      return;
    }
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    for (let index = 0; index < 60; index++) {
      response.write(chunkEvent(`${index} `));
      await delay(100);
    }
    response.end(chunkEvent('', 'stop') + doneEvent);
  });
  replica.load = { max_sequences: 64 };
});
afterEach(async () => {
  await gateway.end('SIGKILL');
  await replica.kill();
  await registry.close();
  rmSync(folder, { recursive: true, force: true });
});

async function start(change: Partial<GatewayConfig>): Promise<void> {
  const { mesh_folder, gateway_folder, deployments_folder, keys_folder } = stateLayout(folder, 'test');
  const folders = { mesh_folder, gateway_folder, deployments_folder, keys_folder };
  gateway = new GatewayProcess(testConfig(folder, { ...folders, ...change }));
  endpoint = await gateway.listening();
  url = endpoint.url;
  const key = await newKey({});
  await until(async () => (await ask(key)).status === 200, 'the gateway to reach the replica');
}

async function newKey(settings: KeySettings): Promise<string> {
  return (await gateway.newKey(endpoint, settings)).key;
}

function ask(key: string, body: string | Buffer = '{"model":"tiny","messages":[]}'): Promise<Response> {
  return fetch(url + path, {
    method: 'POST',
    headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
    body,
  });
}

function rss_bytes(): number {
  return 1024 * Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${gateway.child.pid}/status`, 'utf8'))![1]);
}

/** Time that the gateway's event loop had a core: on a busy machine it waits for one, whatever it does itself. */
function computed_ms(): number {
  const { pid } = gateway.child;
  const [on_cpu_ns] = readFileSync(`/proc/${pid}/task/${pid}/schedstat`, 'utf8').split(' ');
  return Number(on_cpu_ns) / 1e6;
}

/** Sends all of a body but its last byte, and keeps the connection. */
class Holder {
  said = '';
  readonly socket: Socket;

  constructor(key: string, body: Buffer, chunked = false) {
    const { hostname, port } = new URL(url);
    const length = chunked ? 'transfer-encoding: chunked' : `content-length: ${body.length + 1}`;
    this.socket = connect(Number(port), hostname, () => {
      this.socket.write(
        `POST ${path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer ${key}\r\ncontent-type: application/json\r\n${length}\r\n\r\n`,
      );
      if (chunked) this.socket.write(`${body.length.toString(16)}\r\n`);
      this.socket.write(body);
    });
    this.socket.on('data', (bytes: Buffer) => {
      this.said += bytes.toString('latin1');
    });
    this.socket.on('error', () => undefined);
  }

  get status(): number {
    return Number(this.said.slice(9, 12));
  }
}

/** How long a request of another key takes, ms. */
async function timeOf(key: string): Promise<number> {
  const began_ms = performance.now();
  expect((await ask(key)).status).toBe(200);
  return performance.now() - began_ms;
}

it('what a key may not ask is refused before it is held; what all hold is bounded; others go on', async () => {
  await start({ bodies_bytes_max: 256 * mib, bodies_key_bytes_max: 70 * mib, body_wait_s: 2 });
  const [greedy, honest, wide] = await Promise.all([
    newKey({ requests_per_minute: 5 }),
    newKey({ requests_per_minute: 1000 }),
    newKey({}),
  ]);
  const before = rss_bytes();
  const body = Buffer.alloc(31 * mib, 0x20);
  const holders = Array.from({ length: 24 }, () => new Holder(greedy, body));
  const times: number[] = [];
  await until(
    async () => {
      times.push(await timeOf(honest));
      return holders.filter(({ said }) => said.includes('E_KEY_RATE')).length === 19;
    },
    'all but five to be refused',
    patience_ms,
  );
  const told = holders.find(({ said }) => said.includes('E_KEY_RATE'))!;
  expect(told.said).toMatch(/retry-after: \d+/);
  // Of the five, two have room at a time, whatever they announce or not.
  await until(
    () => holders.filter(({ said }) => said.includes('E_KEY_BODIES')).length === 3,
    'its share to be used up',
    patience_ms,
  );
  // A key without limits of its own: each connection is another's share of the memory.
  const more = Array.from({ length: 12 }, (_, index) => new Holder(wide, body, index % 2 === 0));
  await until(
    () => more.filter(({ status }) => status === 429).length >= 10,
    'the share of the other key to be used up',
    patience_ms,
  );
  times.push(await timeOf(honest));
  expect(rss_bytes() - before).toBeLessThan(256 * mib);
  expect(Math.max(...times)).toBeLessThan(5000);
  // What is given up is given back.
  for (const { socket } of [...holders, ...more]) socket.destroy();
  await until(
    async () =>
      (await ask(wide, Buffer.concat([Buffer.from('{"model":"tiny"'), body, Buffer.from('}')]))).status ===
      200,
    'room for a large one',
    patience_ms,
  );
}, 180_000);

it('one of 33 MB that is slow to read holds up nobody, and is answered', async () => {
  await start({});
  const [tenant, other] = await Promise.all([newKey({}), newKey({})]);
  const stream = await ask(other, '{"model":"tiny","messages":[],"stream":true}');
  const text = stream.text();
  await delay(1000);
  const body = Buffer.from(`{"model":"tiny","messages":[],"x":[${'{},'.repeat(11_000_000)}{}]}`);
  const before = rss_bytes();
  let done = false;
  const large = Promise.all([ask(tenant, body), ask(tenant, body)]).finally(() => {
    done = true;
  });
  const times: number[] = [];
  let most = 0;
  while (!done) {
    const began_ms = computed_ms();
    await (await fetch(`${url}/health`)).text();
    times.push(computed_ms() - began_ms);
    most = Math.max(most, rss_bytes());
  }
  expect((await large).map(({ status }) => status)).toEqual([200, 200]);
  // JSON.parse of one of them takes seconds, and a gigabyte.
  expect(Math.max(...times)).toBeLessThan(1000);
  expect(most - before).toBeLessThan(6 * body.length);
  expect((await text).endsWith(doneEvent)).toBe(true);
  expect(replica.requests.filter(({ body: seen }) => seen.length === body.length)).toHaveLength(2);
}, 180_000);
