/** A client that takes a large answer slowly, and all the time. */
import { mkdtempSync, rmSync } from 'node:fs';
import { createServer } from 'node:https';
import { connect, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { connect as connectTls } from 'node:tls';
import { afterAll, expect, it } from 'vitest';
import type { AcceptedRequest } from '../../../gateway/relay/accepted-request.ts';
import { ClientAnswer } from '../../../gateway/relay/client-answer.ts';
import { SessionIdentity } from '../../../mesh/index.ts';
import { json, shareStage } from '../support.ts';

const folder = mkdtempSync(join(tmpdir(), 'hpcserve-slow-reader-'));
/** The kernel keeps 200 KB for a unix socket, and megabytes for a client on a port. */
const path = join(folder, 'socket');
const stall_ms = 500;
const shared = shareStage({ stall_ms }, { socket: path });
afterAll(() => rmSync(folder, { recursive: true }));

const mib = 2 ** 20;
/** Passed on about a mebibyte at a time, each of which takes the client twice the stall time and more. */
const answer_bytes = 5 * mib;
const slow_bytes = 3 * mib;
const piece_bytes = 32 * 1024;
const pause_ms = 40;

it('gets all of it, though no piece that is written is taken within the stall time', async () => {
  await shared.session(json({ choices: [], text: 'x'.repeat(answer_bytes) }));
  const socket = connect(path);
  const errors: Error[] = [];
  socket.on('error', (error) => errors.push(error));
  const body = JSON.stringify({ model: 'tiny', messages: [] });
  socket.write(
    'POST /v1/chat/completions HTTP/1.1\r\nhost: here\r\nconnection: close\r\n' +
      'content-type: application/json\r\n' +
      `authorization: Bearer ${shared.stage.key}\r\ncontent-length: ${body.length}\r\n\r\n${body}`,
  );
  const { read_bytes, slow_ms, end } = await readSlowly(socket);
  expect(errors).toEqual([]);
  expect(slow_ms).toBeGreaterThan(3 * stall_ms);
  expect(read_bytes).toBeGreaterThan(answer_bytes);
  expect(end.trimEnd().endsWith('0')).toBe(true);
}, 60_000);

it('gets all of one that is written at once over TLS', async () => {
  const own = join(folder, 'tls');
  const identity = await SessionIdentity.create();
  const pem = { key: identity.privateKeyPem(), cert: identity.certificate_pem };
  const server = createServer(pem, (request, response) => {
    const of = { request, response, began_ms: 0 } as unknown as AcceptedRequest;
    response.end(Buffer.alloc(answer_bytes));
    new ClientAnswer(of, stall_ms, () => undefined).watchRest();
  });
  await new Promise<void>((resolve) => server.listen(own, resolve));
  const socket = connectTls({ path: own, rejectUnauthorized: false });
  const errors: Error[] = [];
  socket.on('error', (error) => errors.push(error));
  socket.write('GET / HTTP/1.1\r\nhost: here\r\nconnection: close\r\n\r\n');
  const { read_bytes } = await readSlowly(socket);
  server.close();
  expect(errors).toEqual([]);
  expect(read_bytes).toBeGreaterThan(answer_bytes);
}, 60_000);

/** All that comes, the first of it slowly. */
async function readSlowly(socket: Socket): Promise<{ read_bytes: number; slow_ms: number; end: string }> {
  const began_ms = performance.now();
  const read = { read_bytes: 0, slow_ms: 0, end: '' };
  for await (const bytes of socket.iterator() as AsyncIterable<Buffer>) {
    read.read_bytes += bytes.length;
    read.end = bytes.toString('latin1').slice(-64);
    if (read.read_bytes < slow_bytes) await delay((pause_ms * bytes.length) / piece_bytes);
    else read.slow_ms ||= performance.now() - began_ms;
  }
  return read;
}
