/** A client that takes a large answer slowly, and all the time. */
import { mkdtempSync, rmSync } from 'node:fs';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { afterAll, expect, it } from 'vitest';
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
  let read_bytes = 0;
  let end = '';
  const began_ms = performance.now();
  let slow_ms = 0;
  for await (const bytes of socket.iterator() as AsyncIterable<Buffer>) {
    read_bytes += bytes.length;
    end = bytes.toString('latin1').slice(-64) || end;
    if (read_bytes < slow_bytes) await delay((pause_ms * bytes.length) / piece_bytes);
    else slow_ms ||= performance.now() - began_ms;
  }
  expect(errors).toEqual([]);
  expect(slow_ms).toBeGreaterThan(3 * stall_ms);
  expect(read_bytes).toBeGreaterThan(answer_bytes);
  expect(end.trimEnd().endsWith('0')).toBe(true);
}, 60_000);
