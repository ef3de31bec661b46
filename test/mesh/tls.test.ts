import { once } from 'node:events';
import { createServer, type Server } from 'node:https';
import {
  type AddressInfo,
  connect as connectPlain,
  createServer as createPlainServer,
  type Socket,
} from 'node:net';
import { connect, type TLSSocket } from 'node:tls';
import { Pool } from 'undici';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import {
  authorizePeer,
  pinnedConnect,
  pinnedConnector,
  RelayFallback,
  RendezvousRegistry,
  SessionIdentity,
  sessionOrigin,
  sessionTlsServerOptions,
} from '../../mesh/index.ts';
import type { SessionRecord } from '../../spec/session-record.ts';
import { sessionServerName } from '../../spec/wire.ts';
import { eventually, metadata, recordOf, scratchFolder } from './support.ts';

describe('TLS between members', () => {
  let folder: Awaited<ReturnType<typeof scratchFolder>>;
  let registry: RendezvousRegistry;
  let server: Server;
  let port: number;
  let one: SessionIdentity;
  let two: SessionIdentity;
  let member: SessionIdentity;
  let stranger: SessionIdentity;

  beforeAll(async () => {
    folder = await scratchFolder();
    [one, two, member, stranger] = await Promise.all([
      SessionIdentity.create(),
      SessionIdentity.create(),
      SessionIdentity.create(),
      SessionIdentity.create(),
    ]);
    registry = await RendezvousRegistry.open(folder.path, { create: true, refresh_min_ms: 10 });
    await registry.publish(recordOf(member), member);
    const sessions = new Map([one, two].map((identity) => [identity.session_id, identity]));
    server = createServer(
      sessionTlsServerOptions((id) => sessions.get(id)),
      (request, response) => {
        const socket = request.socket as TLSSocket;
        authorizePeer(socket, registry).then(
          (peer) => response.end(`${socket.servername} ${peer.session_id} ${socket.getProtocol()}`),
          (error: Error) => response.writeHead(403).end(error.message),
        );
      },
    );
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    port = (server.address() as AddressInfo).port;
  });

  afterAll(async () => {
    server.closeAllConnections();
    server.close();
    await registry.close();
    await folder[Symbol.asyncDispose]();
  });

  const at = (identity: SessionIdentity, host = '127.0.0.1'): SessionRecord =>
    recordOf(identity, { metadata: { ...metadata, addresses: [{ host, port }] } });

  async function ask(record: SessionRecord, own: SessionIdentity): Promise<{ status: number; body: string }> {
    const pool = new Pool(sessionOrigin(record), { connect: pinnedConnector(record, own) });
    try {
      const answer = await pool.request({ method: 'GET', path: '/' });
      return { status: answer.statusCode, body: await answer.body.text() };
    } finally {
      await pool.destroy();
    }
  }

  test('the server name picks the key, and both ends know each other', async () => {
    for (const identity of [one, two]) {
      expect(await ask(at(identity), member)).toEqual({
        status: 200,
        body: `${sessionServerName(identity.session_id)} ${member.session_id} TLSv1.3`,
      });
    }
  });

  test('a server that owns another key than the record names is refused before a byte is sent', async () => {
    let requests = 0;
    const impostor = createServer({
      ...sessionTlsServerOptions(() => undefined),
      SNICallback: undefined,
      key: stranger.privateKeyPem(),
      cert: stranger.certificate_pem,
    });
    impostor.on('request', (_request, response) => {
      requests++;
      response.end();
    });
    impostor.listen(0, '127.0.0.1');
    await once(impostor, 'listening');
    const addresses = [{ host: '127.0.0.1', port: (impostor.address() as AddressInfo).port }];
    const record = recordOf(one, { metadata: { ...metadata, addresses } });
    await expect(ask(record, member)).rejects.toMatchObject({
      code: 'E_MESH_PINNING',
      because: [`it owns the key of session ${stranger.session_id}`],
    });
    expect(requests).toBe(0);
    impostor.close();
  });

  test('a client whose key no record names is refused', async () => {
    expect(await ask(at(one), stranger)).toMatchObject({ status: 403 });
  });

  test('a client without a certificate is refused', async () => {
    const socket = connect({
      port,
      host: '127.0.0.1',
      servername: sessionServerName(one.session_id),
      rejectUnauthorized: false,
    });
    socket.write('GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n');
    let answer = '';
    for await (const chunk of socket) answer += chunk;
    expect(answer).toContain('403');
    expect(answer).toContain('is not a member of this mesh');
  });

  test('a record that appears only after the connection was made counts; a LEFT one does not any more', async () => {
    const late = await SessionIdentity.create();
    const elsewhere = await RendezvousRegistry.open(folder.path, { create: false });
    await elsewhere.publish(recordOf(late), late);
    expect(await ask(at(one), late)).toMatchObject({ status: 200 });
    await elsewhere.publish(recordOf(late, { lifecycle: 'LEFT' }), late);
    await registry.refresh();
    expect(await ask(at(one), late)).toMatchObject({ status: 403 });
    await elsewhere.close();
  });

  test.each<[string, { servername?: string; maxVersion?: 'TLSv1.2' }]>([
    ['an unknown server name', { servername: sessionServerName('0'.repeat(32)) }],
    ['no server name', {}],
    ['TLS 1.2', { maxVersion: 'TLSv1.2', servername: 'known' }],
  ])('%s ends the handshake', async (_what, options) => {
    const servername =
      options.servername === 'known' ? sessionServerName(one.session_id) : options.servername;
    const socket = connect({
      port,
      host: '127.0.0.1',
      rejectUnauthorized: false,
      cert: member.certificate_pem,
      key: member.privateKeyPem(),
      ...options,
      ...(servername === undefined ? {} : { servername }),
    });
    const [error] = (await once(socket, 'error')) as [Error];
    expect(error.message).toMatch(/alert|ECONNRESET|disconnected/);
  });

  test('plain HTTP gets no answer', async () => {
    const socket = connectPlain(port, '127.0.0.1');
    socket.write('GET / HTTP/1.1\r\nHost: x\r\n\r\n');
    let answer = '';
    socket.on('data', (chunk: Buffer) => {
      answer += chunk.toString('latin1');
    });
    await once(socket, 'close');
    expect(answer).not.toContain('HTTP/1.1 200');
  });

  test('addresses are tried in order; where none answers, the error names each', async () => {
    const free = createServer({});
    free.listen(0, '127.0.0.1');
    await once(free, 'listening');
    const dead = { host: '127.0.0.1', port: (free.address() as AddressInfo).port };
    free.close();
    await once(free, 'close');
    const both = recordOf(one, { metadata: { ...metadata, addresses: [dead, { host: '127.0.0.1', port }] } });
    expect(await ask(both, member)).toMatchObject({ status: 200 });
    const none = recordOf(one, { metadata: { ...metadata, addresses: [dead] } });
    await expect(ask(none, member)).rejects.toMatchObject({
      code: 'E_MESH_CONNECT',
      because: [expect.stringContaining(`127.0.0.1:${dead.port}: connect ECONNREFUSED`)],
    });
  });

  test('the relay fallback is taken without waiting for ways that say nothing, until a direct way is found beside it', async () => {
    // A port that takes connections and never says a word, as behind a firewall.
    const knocks: Socket[] = [];
    const wall = createPlainServer((socket) => {
      knocks.push(socket);
      socket.on('error', () => undefined);
    });
    wall.listen(0, '127.0.0.1');
    await once(wall, 'listening');
    const walled = recordOf(one, {
      metadata: {
        ...metadata,
        addresses: [{ host: '127.0.0.1', port: (wall.address() as AddressInfo).port }],
      },
    });
    let taken = 0;
    const relayFallback = new RelayFallback(async () => {
      taken++;
      return connectPlain(port, '127.0.0.1');
    }, 0); // a direct way is looked for each time
    const connects = async (record: SessionRecord, timeout_ms: number): Promise<void> => {
      (await pinnedConnect(record, member, { relayFallback, timeout_ms })).destroy();
    };
    await connects(walled, 300);
    expect([taken, relayFallback.isPreferred(walled)]).toEqual([1, true]);
    // The next one does not wait: it is there while the wall still holds the knock beside it.
    await connects(walled, 60_000);
    expect(taken).toBe(2);
    await eventually(() => knocks.length === 2, 'the knock');
    expect(knocks[1]!.destroyed).toBe(false);
    expect(relayFallback.isPreferred(walled)).toBe(true);
    // It comes to an end: the way is direct from then on.
    await connects(at(one), 10_000);
    await eventually(() => !relayFallback.isPreferred(at(one)), 'the direct way');
    expect(taken).toBe(3);
    await connects(at(one), 10_000);
    expect(taken).toBe(3);
    for (const socket of knocks) socket.destroy();
    wall.close();
  });
});
