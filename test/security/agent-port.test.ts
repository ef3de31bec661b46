/** The port of a real node agent, as strangers on the network and misbehaving members reach it. */
import { connect, type Socket } from 'node:net';
import { type ConnectionOptions, type TLSSocket, connect as tlsConnect } from 'node:tls';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { SessionServer } from '../../agent/node/session-server.ts';
import { LocalSession, pinnedConnect, SessionIdentity } from '../../mesh/index.ts';
import type { SessionRecord } from '../../spec/session-record.ts';
import { headers, limits, sessionServerName } from '../../spec/wire.ts';
import { fixtureUnit, type RunningAgent, Site } from '../agent/support.ts';
import { eventually, metadata } from '../mesh/support.ts';

let site: Site;
let agent: RunningAgent;
let record: SessionRecord;
let address: { host: string; port: number };

beforeAll(async () => {
  site = await Site.open();
  agent = await site.start([fixtureUnit('m')]);
  record = await site.serving('m');
  address = record.metadata.addresses[0]!;
});
afterAll(() => site[Symbol.asyncDispose]());

/** What comes back until the other side ends the connection, or `limit_ms` have passed. */
function answerOf(socket: Socket, limit_ms = 5000): Promise<string> {
  return new Promise((resolve) => {
    let text = '';
    const end = (): void => {
      clearTimeout(timer);
      socket.destroy();
      resolve(text);
    };
    const timer = setTimeout(end, limit_ms);
    socket.on('data', (chunk: Buffer) => {
      text += chunk.toString('latin1');
    });
    socket.on('error', end);
    socket.on('close', end);
  });
}

function handshake(options: ConnectionOptions): Promise<string> {
  return new Promise((resolve) => {
    const socket = tlsConnect({ ...address, rejectUnauthorized: false, ...options });
    socket.once('secureConnect', () => {
      resolve(`connected ${socket.getProtocol()}`);
      socket.destroy();
    });
    socket.once('error', (error: NodeJS.ErrnoException) => resolve(`refused ${error.code}`));
    socket.once('close', () => resolve('refused'));
  });
}

function ofMember(identity: SessionIdentity): ConnectionOptions {
  return { key: identity.privateKeyPem(), cert: identity.certificate_pem };
}

/** Bytes of a member, as they are, and what the agent answers. */
async function raw(text: string): Promise<string> {
  const socket = await pinnedConnect(record, site.gateway.identity);
  socket.write(text, 'latin1');
  return answerOf(socket);
}

async function expectServing(): Promise<void> {
  const answer = await site.ask(record, 'count 1');
  expect(await answer.body.text()).toContain('[DONE]');
}

describe('strangers', () => {
  const servername = () => sessionServerName(record.session_id);

  test.each<[string, () => ConnectionOptions]>([
    ['TLS 1.2', () => ({ servername: servername(), maxVersion: 'TLSv1.2', minVersion: 'TLSv1.2' })],
    ['no server name', () => ({})],
    ['a name of nobody', () => ({ servername: sessionServerName('0'.repeat(32)) })],
    ['another name of the session', () => ({ servername: `${record.session_id}.example.org` })],
    ['a name that only begins like it', () => ({ servername: `${servername()}.evil.org` })],
    ['another protocol', () => ({ servername: servername(), ALPNProtocols: ['h2'] })],
  ])('%s: no handshake, even for a member', async (_what, options) => {
    expect(await handshake({ ...ofMember(site.gateway.identity), ...options() })).toMatch(/^refused/);
    await expectServing();
  });

  test('with a key of their own, or with none, they get one line and no request is read', async () => {
    const strange = await SessionIdentity.create();
    for (const options of [ofMember(strange), {}]) {
      const socket = tlsConnect({
        ...address,
        servername: servername(),
        rejectUnauthorized: false,
        ...options,
      });
      socket.write('GET /hpcserve/v1/state HTTP/1.1\r\nhost: x\r\n\r\n');
      const text = await answerOf(socket);
      expect(text).toMatch(/^HTTP\/1.1 403 /);
      expect(text).toContain('E_MESH_PEER');
      expect(text).not.toContain(agent.launch.launch_id);
    }
  });

  test("a member's certificate without its key is of no use", async () => {
    const strange = await SessionIdentity.create();
    const stolen = { cert: site.gateway.identity.certificate_pem, key: strange.privateKeyPem() };
    await expect(async () => handshake({ servername: servername(), ...stolen })).rejects.toThrow(/key/i);
  });

  test.each([
    'GET / HTTP/1.1\r\nhost: x\r\n\r\n',
    '\x16\x03\x01\xff\xff',
    '\0'.repeat(10_000),
    'SSH-2.0-x\r\n',
  ])('bytes that are no TLS: %#', async (bytes) => {
    const socket = connect(address);
    socket.write(bytes, 'latin1');
    expect(await answerOf(socket, 2000)).not.toContain('HTTP');
    await expectServing();
  });

  test('a thousand of them that hold connections open keep no member out, nor the agent from ending', async () => {
    const ended = new Set<Socket>();
    const sockets = Array.from({ length: 1000 }, () => {
      const socket = connect(address);
      socket.on('error', () => undefined);
      socket.on('close', () => ended.add(socket));
      return socket;
    });
    try {
      await eventually(() => ended.size >= 1000 - 256, 'the oldest are gone');
      const began_ms = performance.now();
      await expectServing();
      expect(performance.now() - began_ms).toBeLessThan(3000);
      const second = await site.start([fixtureUnit('other')]);
      const other = (await site.serving('other')).metadata.addresses[0]!;
      const silent = connect(other);
      silent.on('error', () => undefined);
      await new Promise((resolve) => silent.once('connect', resolve));
      second.process.kill('SIGTERM');
      const asked_ms = performance.now();
      await second.ended;
      expect(performance.now() - asked_ms, 'it does not wait for a handshake').toBeLessThan(5000);
    } finally {
      for (const socket of sockets) socket.destroy();
    }
  });
});

describe('members that misbehave', () => {
  test.each([
    ['a length and chunks', 'content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\nGET'],
    ['two lengths', 'content-length: 4\r\ncontent-length: 5\r\n\r\nabcde'],
    ['an unknown coding', 'transfer-encoding: x, chunked, x\r\n\r\n0\r\n\r\n'],
    ['a folded field', 'content-length: 0\r\nx: a\r\n b\r\n\r\n'],
    ['a blank before the colon', 'content-length : 0\r\n\r\n'],
    ['LF within a field', 'x: a\nauthorization: b\rcontent-length: 0\r\n\r\n'],
    ['a bad chunk', 'transfer-encoding: chunked\r\n\r\n-1\r\n\r\n'],
  ])('%s: refused, and nothing of it reaches the engine', async (_what, rest) => {
    const before = await agent.engineLog('m-0');
    const text = await raw(`POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n${rest}`);
    expect(text).toMatch(/^HTTP\/1.1 (400|502) /);
    expect(text.match(/HTTP\/1.1/g)).toHaveLength(1);
    expect((await agent.engineLog('m-0')).slice(before.length).join()).not.toContain('asked');
    await expectServing();
  });

  test.each([
    '/v1/../metrics',
    '/v1/%2e%2e/metrics',
    '/v1/.%2E/x',
    '/v1/a%2f..%2f..%2fx',
    '/v1/..\\x',
    '//v1/models',
    'http://x/v1/models',
  ])('the path %s leads nowhere', async (path) => {
    const text = await raw(`GET ${path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n`);
    expect(text).toMatch(/^HTTP\/1.1 404 /);
  });

  test('headers over the limit', async () => {
    const text = await raw(
      `GET /v1/models HTTP/1.1\r\nhost: x\r\nx: ${'y'.repeat(limits.header_bytes)}\r\n\r\n`,
    );
    expect(text).toMatch(/^HTTP\/1.1 431 /);
    await expectServing();
  });

  test('names of models that no header field could hold', async () => {
    const text = await raw(
      `GET /v1/models HTTP/1.1\r\nhost: x\r\n${headers.model}: ${encodeURI('a\r\nb')}\r\nconnection: close\r\n\r\n`,
    );
    expect(text).toMatch(/^HTTP\/1.1 503 /);
  });

  test('headers that come too slowly end the connection, also on one that was used before', async () => {
    const own = await LocalSession.join(site.registry, { ...metadata, addresses: [] });
    const server = new SessionServer({
      registry: site.registry,
      identityOf: (id) => (id === own.id ? own.identity : undefined),
      headers_timeout_ms: 600,
      handle: (_session, _request, response) => response.end('answer'),
    });
    const port = await server.listen('127.0.0.1', undefined);
    await own.update({ lifecycle: 'SERVING', metadata: { addresses: [{ host: '127.0.0.1', port }] } });
    for (const first of ['', 'GET /a HTTP/1.1\r\nhost: x\r\n\r\n']) {
      const socket: TLSSocket = await pinnedConnect(own.record, site.gateway.identity);
      socket.write(`${first}GET /b HTTP/1.1\r\n`);
      const drip = setInterval(() => socket.write('x: y\r\n'), 50);
      const began_ms = performance.now();
      const text = await answerOf(socket, 10_000);
      clearInterval(drip);
      expect(performance.now() - began_ms).toBeLessThan(5000);
      expect(text).toContain('HTTP/1.1 408');
      expect(text.includes('answer')).toBe(first !== '');
    }
    await server.close();
    await own.leave();
  });
});
