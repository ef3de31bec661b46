/**
 * Connections of those who have no key: they keep nobody out who has one. A real gateway, strangers in a process of
 * their own.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { Agent, createServer, get, type IncomingMessage } from 'node:http';
import { type AddressInfo, connect, type Socket } from 'node:net';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { ClientConnections } from '../../gateway/client-connections.ts';
import { limits } from '../../spec/wire.ts';
import { chatAnswer, json, type Stage, startStage, until } from './support.ts';

let stage: Stage;
const strangers: ChildProcess[] = [];
beforeAll(async () => {
  stage = await startStage();
  await stage.session(json(chatAnswer));
});
afterAll(async () => {
  for (const stranger of strangers) stranger.kill('SIGKILL');
  await stage.close();
});

/** Holds so many connections open, which ask for nothing but their health; one that ends is made again. */
async function strangersOf(count: number): Promise<() => number> {
  const script = `
    const { connect } = require('node:net');
    const [port, count] = process.argv.slice(1).map(Number);
    const open = new Set();
    let made = 0;
    const add = () => {
      const socket = connect(port, '127.0.0.1', () => { made++; open.add(socket); socket.write('GET /hea'); });
      socket.on('error', () => {});
      socket.on('close', () => { open.delete(socket); setTimeout(add, 200); });
      socket.resume();
    };
    for (let index = 0; index < count; index++) setTimeout(add, index / 4);
    setInterval(() => console.log(open.size + ' ' + made), 50);`;
  const child = spawn(process.execPath, ['-e', script, new URL(stage.url).port, String(count)], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  strangers.push(child);
  let last = '';
  child.stdout!.on('data', (chunk: Buffer) => {
    last = chunk.toString().trim().split('\n').at(-1)!;
  });
  const made = (): number => Number(last.split(' ')[1] ?? 0);
  await until(() => made() >= count, `${count} strangers`, 30_000);
  return () => Number(last.split(' ')[0]);
}

function ask(
  path: string,
  options: { agent?: Agent | false; key?: string; name?: string } = {},
): Promise<{ status: number; connection: string | undefined; took_ms: number }> {
  const { agent = false, key, name = 'authorization' } = options;
  const began_ms = performance.now();
  return new Promise((resolve, reject) => {
    const value = name === 'authorization' ? `Bearer ${key}` : key;
    const headers = key === undefined ? {} : { [name]: value };
    get(new URL(path, stage.url), { agent, headers }, (answer: IncomingMessage) => {
      answer
        .resume()
        .once('error', reject)
        .once('end', () =>
          resolve({
            status: answer.statusCode ?? 0,
            connection: answer.headers.connection,
            took_ms: performance.now() - began_ms,
          }),
        );
    }).once('error', reject);
  });
}

const median = (values: readonly number[]): number => [...values].sort((a, b) => a - b)[values.length >> 1]!;

it('an answer to a request without a valid key is the last on its connection; with one, connections are kept', async () => {
  for (const [path, key, status] of [
    ['/health', undefined, 200],
    ['/v1/models', undefined, 401],
    ['/v1/models', 'hsk-wrong', 401],
    ['/v1/chat/completions', 'hsk-wrong', 405],
    ['/nothing', undefined, 404],
  ] as const) {
    const agent = new Agent({ keepAlive: true });
    const answer = await ask(path, { agent, ...(key === undefined ? {} : { key }) });
    expect([path, answer.status, answer.connection]).toEqual([path, status, 'close']);
    agent.destroy();
  }
  for (const key of [stage.key, stage.gateway.admin_token]) {
    const agent = new Agent({ keepAlive: true, maxSockets: 1 });
    const path = key === stage.key ? '/v1/models' : '/hpcserve/v1/keys';
    for (let time = 0; time < 3; time++)
      expect(await ask(path, { agent, key })).toMatchObject({ status: 200, connection: 'keep-alive' });
    // The same connection, and nobody's key: it has an answer, and no more.
    expect(await ask('/health', { agent })).toMatchObject({ status: 200, connection: 'close' });
    agent.destroy();
  }
});

it.each(['x-api-key', 'api-key'])('a key as %s keeps its connection, too', async (name) => {
  const agent = new Agent({ keepAlive: true, maxSockets: 1 });
  const wrong = await ask('/v1/models', { agent, key: 'hsk-wrong', name });
  expect(wrong).toMatchObject({ status: 401, connection: 'close' });
  const used = new Set<unknown>();
  for (let time = 0; time < 3; time++) {
    const answer = await ask('/v1/models', { agent, key: stage.key, name });
    expect(answer).toMatchObject({ status: 200, connection: 'keep-alive' });
    used.add(Object.values(agent.freeSockets)[0]![0]);
  }
  expect(used.size).toBe(1);
  agent.destroy();
});

it('a key that is revoked ends the connection that it has proven', async () => {
  const { key, id } = await stage.newKey({});
  const agent = new Agent({ keepAlive: true, maxSockets: 1 });
  expect(await ask('/v1/models', { agent, key })).toMatchObject({ status: 200, connection: 'keep-alive' });
  await stage.admin(`/hpcserve/v1/keys/${id}`, { method: 'DELETE' });
  expect(await ask('/v1/models', { agent, key })).toMatchObject({ status: 401, connection: 'close' });
  agent.destroy();
});

it('with 4,300 strangers, requests with a key go through as before, and proven connections stay', async () => {
  const one = async (): Promise<number> => {
    const began_ms = performance.now();
    const answer = await stage.post('/v1/chat/completions', { model: 'tiny', messages: [] });
    await answer.text();
    expect(answer.status).toBe(200);
    return performance.now() - began_ms;
  };
  const kept = new Agent({ keepAlive: true, maxSockets: 1 });
  expect((await ask('/v1/models', { agent: kept, key: stage.key })).status).toBe(200);
  const [proven] = Object.values(kept.freeSockets)[0]!;
  const fresh = async (): Promise<number> => {
    const answer = await ask('/v1/models', { key: stage.key });
    expect(answer.status).toBe(200);
    return answer.took_ms;
  };
  const quiet: number[] = [];
  for (let time = 0; time < 50; time++) quiet.push(await fresh(), await one());
  const open = await strangersOf(limits.connections + 204);
  const crowded: number[] = [];
  for (let time = 0; time < 200; time++) crowded.push(await fresh(), await one());
  expect(open()).toBeGreaterThan(limits.connections - 300);
  // All of the machine's two cores are shared with those who connect again and again.
  expect(median(crowded)).toBeLessThan(10 * median(quiet) + 20);
  expect((await ask('/v1/models', { agent: kept, key: stage.key })).status).toBe(200);
  expect(Object.values(kept.freeSockets)[0]![0]).toBe(proven);
  kept.destroy();
}, 120_000);

it('where there is no room the oldest without a key ends, and nobody who has shown one', async () => {
  const connections = new ClientConnections(3, ({ headers }) => headers.authorization === 'Bearer valid');
  const server = createServer((request, response) => {
    connections.arrived(request, response);
    response.end();
  });
  connections.watch(server);
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const { port } = server.address() as AddressInfo;
  const ended: string[] = [];
  const open = (name: string): Promise<Socket> =>
    new Promise((resolve, reject) => {
      const socket = connect(port, '127.0.0.1', () => resolve(socket));
      socket.once('error', reject);
      socket.once('close', () => ended.push(name));
    });
  const prove = async (socket: Socket): Promise<void> => {
    socket.write('GET / HTTP/1.1\r\nhost: here\r\nauthorization: Bearer valid\r\n\r\n');
    const [answer] = (await once(socket, 'data')) as [Buffer];
    expect(answer.toString()).toContain('200 OK');
    socket.resume();
  };
  try {
    await open('a').then((socket) => socket.resume());
    await prove(await open('b'));
    for (const name of ['c', 'd', 'e']) (await open(name)).resume();
    await until(() => ended.length === 2, 'two to be ended');
    expect(ended).toEqual(['a', 'c']);
    // Where all have shown a key there is no room.
    await prove(await open('f'));
    await prove(await open('g'));
    await until(() => ended.length === 4, 'the last two strangers to be ended');
    (await open('h')).resume();
    await until(() => ended.length === 5, 'the newcomer to be ended');
    expect(ended).toEqual(['a', 'c', 'd', 'e', 'h']);
  } finally {
    server.closeAllConnections();
    server.close();
  }
});
