/** Requests that a client sends before it has the answers to those before them, on one connection. */
import { once } from 'node:events';
import { connect, type Socket } from 'node:net';
import { setTimeout as delay } from 'node:timers/promises';
import { expect, it } from 'vitest';
import { type Answer, chatAnswer, chunkEvent, doneEvent, json, shareStage, until } from '../support.ts';

const stall_ms = 500;
const shared = shareStage({ stall_ms });
const path = '/v1/chat/completions';
/** More than Node holds of an answer whose turn has not come. */
const large_bytes = 100_000;
const large = chunkEvent('x'.repeat(large_bytes));

/** Asks for a stream. */
function ask(socket: Socket, key: string): void {
  const body = JSON.stringify({ model: 'tiny', messages: [], stream: true });
  socket.write(
    `POST ${path} HTTP/1.1\r\nhost: here\r\ncontent-type: application/json\r\n` +
      `authorization: Bearer ${key}\r\ncontent-length: ${body.length}\r\n\r\n${body}`,
  );
}

async function connected(): Promise<Socket> {
  const socket = connect(Number(new URL(shared.stage.url).port), '127.0.0.1');
  await once(socket, 'connect');
  return socket;
}

it.each([
  ['before their answers', () => undefined],
  [
    'while their answers wait',
    (_request, response) => {
      response.writeHead(200, { 'content-type': 'text/event-stream' });
      response.write(large);
    },
  ],
] satisfies [string, Answer][])(
  'end with their client, %s',
  async (_when, answer) => {
    const upstream = await shared.session(answer);
    const { key } = await shared.stage.newKey({ concurrent_requests: 2 });
    const socket = await connected();
    socket.resume();
    for (let count = 0; count < 2; count++) ask(socket, key);
    await until(() => upstream.requests.length === 2, 'both of them to be under way');
    const again = (): Promise<Response> =>
      shared.stage.post(path, { model: 'tiny', messages: [] }, { authorization: `Bearer ${key}` });
    expect((await again()).status).toBe(429);
    upstream.answer = json(chatAnswer);
    socket.destroy();
    await until(async () => (await again()).status === 200, 'its places to be free');
    await Promise.all(upstream.requests.slice(0, 2).map(({ aborted }) => aborted));
    const both = await Promise.all([again(), again()]);
    expect(both.map(({ status }) => status)).toEqual([200, 200]);
  },
  30_000,
);

it('wait for their turn for longer than a client may take nothing', async () => {
  const finish: (() => void)[] = [];
  const upstream = await shared.session((_request, response) => {
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    response.write(finish.length === 0 ? chunkEvent('first') : large);
    finish.push(() => void response.end(chunkEvent('', 'stop') + doneEvent));
  });
  const socket = await connected();
  ask(socket, shared.stage.key);
  await until(() => upstream.requests.length === 1, 'the first to be under way');
  let text = '';
  socket.on('data', (bytes: Buffer) => {
    text += bytes.toString();
  });
  ask(socket, shared.stage.key);
  await until(() => finish.length === 2, 'the second to be under way');
  await delay(3 * stall_ms);
  for (const end of finish) end();
  await until(() => text.split(doneEvent).length === 3 || socket.destroyed, 'both answers');
  expect(text.split(doneEvent)).toHaveLength(3);
  expect(text.split('x').length).toBeGreaterThan(large_bytes);
  socket.destroy();
}, 30_000);
