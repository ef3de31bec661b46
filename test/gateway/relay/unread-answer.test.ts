/** A client that does not read an answer that is all there. */
import { once } from 'node:events';
import { connect } from 'node:net';
import { setTimeout as delay } from 'node:timers/promises';
import { expect, it } from 'vitest';
import { json, shareStage, until } from '../support.ts';

const stall_ms = 2000;
const shared = shareStage({ stall_ms });
/** Below the size from which an answer is passed on as it comes. */
const answer_bytes = 900_000;
/** Together more than the kernel takes for a client that does not read. */
const answers = 16;

/** Asks so many times on one connection, and reads nothing until `resume` is called. */
async function askUnread(): Promise<{ resume(): Promise<number> }> {
  const upstream = await shared.session(json({ choices: [], text: 'x'.repeat(answer_bytes) }));
  const socket = connect(Number(new URL(shared.stage.url).port), '127.0.0.1');
  socket.pause();
  await once(socket, 'connect');
  const body = JSON.stringify({ model: 'tiny', messages: [] });
  const head =
    'POST /v1/chat/completions HTTP/1.1\r\nhost: here\r\ncontent-type: application/json\r\n' +
    `authorization: Bearer ${shared.stage.key}\r\ncontent-length: ${body.length}\r\n\r\n`;
  socket.write((head + body).repeat(answers));
  let before = -1;
  await until(async () => {
    const isStill = upstream.requests.length > 2 && upstream.requests.length === before;
    before = upstream.requests.length;
    await delay(200);
    return isStill;
  }, 'the connection to be full');
  return {
    resume: async () => {
      let read_bytes = 0;
      socket.on('data', (chunk: Buffer) => {
        read_bytes += chunk.length;
        if (read_bytes > answers * answer_bytes) socket.end();
      });
      socket.on('error', () => {});
      socket.resume();
      await once(socket, 'close');
      return read_bytes;
    },
  };
}

it('loses its connection when it has taken nothing for the stall time', async () => {
  const client = await askUnread();
  await delay(2.5 * stall_ms);
  expect(await client.resume()).toBeLessThan(answers * answer_bytes);
}, 30_000);

it('gets all of it where it goes on in time', async () => {
  const client = await askUnread();
  expect(await client.resume()).toBeGreaterThan(answers * answer_bytes);
}, 30_000);
