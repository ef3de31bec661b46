/** Which connections of clients take events past their stream: none with TLS, whose bytes would go out in the clear. */
import { request } from 'node:http';
import { request as requestTls } from 'node:https';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { ClientConnections } from '../../gateway/client-connections.ts';
import { ClientServers } from '../../gateway/client-servers.ts';
import { SessionIdentity } from '../../mesh/session-identity.ts';
import { scratchFolder } from '../mesh/support.ts';

const times = { headers_ms: 5000, request_ms: 5000, keep_alive_ms: 5000, check_ms: 1000 };

it.each([
  { way: 'plain', isTls: false, past: { port: true, socket: true } },
  { way: 'with TLS', isTls: true, past: { port: false, socket: true } },
])('of a port that is $way, and of the unix socket beside it', async ({ isTls, past }) => {
  await using scratch = await scratchFolder();
  const identity = await SessionIdentity.create();
  const tls = isTls ? { cert: identity.certificate_pem, key: identity.privateKeyPem() } : undefined;
  const accepting = new ClientServers(times, new ClientConnections(10, () => true), tls);
  accepting.answerWith((_request, { socket }) => {
    expect(socket).not.toBeNull();
    seen.push('sendNow' in socket!);
    socket!.destroy();
  });
  const seen: boolean[] = [];
  const { port, socket } = accepting.servers;
  const path = join(scratch.path, 's');
  await Promise.all([
    new Promise<void>((resolve) => port.listen(0, '127.0.0.1', resolve)),
    new Promise<void>((resolve) => socket.listen(path, resolve)),
  ]);
  const asked = (ask: () => ReturnType<typeof request>): Promise<unknown> =>
    new Promise((resolve) => ask().on('error', resolve).end());
  try {
    const to = { host: '127.0.0.1', port: (port.address() as AddressInfo).port };
    await asked(() => (isTls ? requestTls({ ...to, rejectUnauthorized: false }) : request(to)));
    await asked(() => request({ socketPath: path }));
    expect(seen).toEqual([past.port, past.socket]);
  } finally {
    accepting.closeAll();
    for (const server of [port, socket]) server.close();
  }
});
