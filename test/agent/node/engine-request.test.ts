/** Connections of the agent to engines: one a request, and none to anybody else. */
import { createServer, type Server } from 'node:http';
import { type AddressInfo, connect, createServer as createTcpServer } from 'node:net';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { expect, test } from 'vitest';
import { fetchText } from '../../../agent/node/engine-request.ts';
import type { Upstream } from '../../../agent/node/serving-process.ts';
import { parsePeer, peerOf } from '../../../host/tcp-table.ts';
import { scratchFolder } from '../../mesh/support.ts';

/** A server that closes connections which have been idle for 100 ms, does not say so, and counts them. */
async function impatient(where: { path: string } | { port: number; host: string }) {
  let connections = 0;
  const server: Server = createServer({ keepAliveTimeout: 100 }, (_, response) => {
    response.setHeader('connection', 'keep-alive').end('yes');
  });
  server.on('connection', () => {
    connections++;
  });
  await new Promise<void>((resolve) => server.listen(where, resolve));
  const address = server.address();
  const upstream: Upstream =
    typeof address === 'string'
      ? { kind: 'socket', path: address }
      : { kind: 'loopback', port: (address as AddressInfo).port };
  return { upstream, connections: () => connections, [Symbol.dispose]: () => void server.close() };
}

test.each(['socket', 'loopback'])(
  'by %s: no request meets a connection that is being closed',
  async (kind) => {
    await using scratch = await scratchFolder();
    using engine = await impatient(
      kind === 'socket' ? { path: join(scratch.path, 'e.sock') } : { port: 0, host: '127.0.0.1' },
    );
    const lane = async (index: number): Promise<string[]> => {
      const answers: string[] = [];
      for (let round = 0; round < 20; round++) {
        answers.push((await fetchText(engine.upstream, '/', 5000)).text);
        await delay(98 + ((index + round) % 5));
      }
      return answers;
    };
    const answers = await Promise.all(Array.from({ length: 20 }, (_, index) => lane(index)));
    expect(answers.flat()).toEqual(Array.from({ length: 400 }, () => 'yes'));
    expect(engine.connections()).toBe(400);
  },
);

const table = (rows: string[]): string => ['  sl  local_address rem_address   st …', ...rows, ''].join('\n');
const row = (local: string, remote: string, uid: number, inode: number): string =>
  `   3: ${local} ${remote} 01 00000000:00000000 00:00000000 00000000 ${String(uid).padStart(5)}        0 ${inode} 1 0000000000000000 20 4 30 10 -1`;

test.each<[string, string[], number | undefined]>([
  ['the other end', [row('0100007F:1F90', '0100007F:C350', 1000, 77)], 1000],
  [
    'of several the one of this connection',
    [row('0100007F:1F90', '0100007F:C351', 65_534, 5), row('0100007F:1F90', '0100007F:C350', 1000, 77)],
    1000,
  ],
  [
    'of a server that listens on all addresses',
    [row('0000000000000000FFFF00000100007F:1F90', '0000000000000000FFFF00000100007F:C350', 1000, 77)],
    1000,
  ],
  ['nobody yet', [row('0100007F:1F90', '0100007F:C350', 0, 0)], undefined],
  ['not its own end', [row('0100007F:C350', '0100007F:1F90', 1000, 77)], undefined],
  ['not another address', [row('0200007F:1F90', '0100007F:C350', 65_534, 9)], undefined],
])('in the kernel’s table: %s', (_, rows, user) => {
  expect(parsePeer(table(rows), 8080, 50_000)).toBe(user);
});

test.each(['127.0.0.1', '::'])('a server on %s is asked for once it accepts', async (host) => {
  const server = createTcpServer();
  await new Promise<void>((resolve) => server.listen(0, host, resolve));
  const { port } = server.address() as AddressInfo;
  const socket = connect(port, '127.0.0.1');
  await new Promise((resolve) => socket.once('connect', resolve));
  expect(await peerOf(port, socket.localPort!, AbortSignal.timeout(5000))).toBe(process.getuid!());
  socket.destroy();
  server.close();
});
