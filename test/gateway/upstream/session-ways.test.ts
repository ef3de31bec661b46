/** By which ways a gateway reaches a node, and what its port makes of them. */
import { createServer } from 'node:https';
import { type AddressInfo, connect, type Socket } from 'node:net';
import { Duplex } from 'node:stream';
import type { TLSSocket } from 'node:tls';
import { Pool } from 'undici';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { UpstreamPool } from '../../../gateway/upstream/pool.ts';
import { SessionWays } from '../../../gateway/upstream/session-ways.ts';
import { channels_max } from '../../../mesh/channels/channel-connection.ts';
import {
  ChannelConnection,
  channel_protocol,
  pinnedConnect,
  pinnedConnector,
  RelayFallback,
  SessionIdentity,
  sessionOrigin,
  sessionTlsServerOptions,
} from '../../../mesh/index.ts';
import { limits } from '../../../spec/wire.ts';
import { AskedNode, answerPath, ask, event, expectServing, flood, MiB } from './support.ts';

let at: AskedNode;

beforeAll(async () => {
  at = await AskedNode.open();
});
afterEach(() => at.reset());
afterAll(() => at.close());

describe('a node', () => {
  it('an agent that does not know channels is asked by HTTP/1.1, on a connection for each request', async () => {
    const seen = new Set<Socket>();
    const old = createServer(
      sessionTlsServerOptions(() => at.node.identity),
      (request, response) => {
        seen.add(request.socket);
        setTimeout(() => answerPath(request, response), 20);
      },
    );
    await new Promise<void>((resolve) => old.listen(0, '127.0.0.1', resolve));
    const { pool, sockets } = at.newPool((old.address() as AddressInfo).port);
    const answers = Array.from({ length: 20 }, (_, number) => ask(pool, `/${number}`));
    for (const [number, answer] of answers.entries()) expect((await answer.whole()).text).toBe(`/${number}`);
    // Some were free again before a connection was there that had been begun for their request.
    expect(seen.size).toBeLessThanOrEqual(sockets.length);
    expect(seen.size).toBeGreaterThan(1);
    expect(sockets.every(({ alpnProtocol }) => alpnProtocol === 'http/1.1')).toBe(true);
    pool.destroy(new Error('over'));
    old.closeAllConnections();
    await new Promise<void>((resolve) => old.close(() => resolve()));
  });

  it('a gateway that does not know channels is answered by HTTP/1.1', async () => {
    const pool = new Pool(sessionOrigin(at.node.record), {
      connect: pinnedConnector(at.node.record, at.gateway.identity),
    });
    const answer = await pool.request({ method: 'GET', path: '/old' });
    expect([answer.statusCode, await answer.body.text()]).toEqual([200, '/old']);
    await pool.destroy();
    const { pool: plain, sockets } = at.newPool(at.port, ['http/1.1']);
    await expectServing(plain);
    expect(sockets[0]!.alpnProtocol).toBe('http/1.1');
  });

  it('channels go through a peer that relays, too', async () => {
    const relay = new RelayFallback(() => {
      const socket = connect(at.port, '127.0.0.1');
      return Promise.resolve(Duplex.from({ readable: socket, writable: socket }));
    });
    const away = {
      ...at.node.record,
      metadata: { ...at.node.record.metadata, addresses: [] },
    };
    const sockets: TLSSocket[] = [];
    const pool = new UpstreamPool(
      new SessionWays(async (read) => {
        const socket = await pinnedConnect(away, at.gateway.identity, {
          read,
          relayFallback: relay,
          protocols: [channel_protocol, 'http/1.1'],
        });
        sockets.push(socket);
        return socket;
      }),
    );
    at.pools.push(pool);
    at.handle = (request, response) => {
      request.resume();
      flood(response, Buffer.alloc(10_000, 'r'), MiB);
    };
    const answers = Array.from({ length: 10 }, () => ask(pool, '/'));
    for (const answer of answers) expect((await answer.whole()).length).toBeGreaterThanOrEqual(MiB);
    expect(sockets.map(({ alpnProtocol }) => alpnProtocol)).toEqual([channel_protocol]);
  }, 30_000);

  it('headers that come too slowly end their channel alone', async () => {
    const hasty = at.newServer(600);
    const hasty_port = await hasty.listen('127.0.0.1', undefined);
    const record = {
      ...at.node.record,
      metadata: { ...at.node.record.metadata, addresses: [{ host: '127.0.0.1', port: hasty_port }] },
    };
    let carrier: ChannelConnection | undefined;
    const socket = await pinnedConnect(record, at.gateway.identity, {
      read: (bytes) => carrier!.read(Buffer.from(bytes)),
      protocols: [channel_protocol],
    });
    carrier = new ChannelConnection(socket);
    const texts = ['', ''];
    const closings: (Error | undefined)[][] = [[], []];
    const channels = texts.map((_, number) =>
      carrier!.open({
        data: (bytes) => {
          texts[number] += bytes.toString();
        },
        ended: () => undefined,
        drained: () => undefined,
        closed: (error) => closings[number]!.push(error),
      }),
    );
    channels[0]!.write('GET /slow HTTP/1.1\r\n');
    const drip = setInterval(() => channels[0]!.write('x: y\r\n'), 50);
    await expect.poll(() => closings[0]!.length, { timeout: 10_000 }).toBe(1);
    clearInterval(drip);
    expect(texts[0]).toContain('HTTP/1.1 408');
    channels[1]!.write('GET /other HTTP/1.1\r\nhost: x\r\n\r\n');
    // It was opened long ago, and had asked nothing either.
    await expect.poll(() => texts[1] !== '' || closings[1]!.length > 0).toBe(true);
    expect(socket.destroyed).toBe(false);
    carrier.destroy(new Error('the test is over'));
    await hasty.close();
  }, 30_000);

  it('a gateway that the node does not know is told so on each channel, and let in once it is known', async () => {
    let unknown = await SessionIdentity.create();
    const connections: TLSSocket[] = [];
    const pool = new UpstreamPool(
      new SessionWays(async (read) => {
        const protocols = [channel_protocol, 'http/1.1'];
        const socket = await pinnedConnect(at.node.record, unknown, { read, protocols });
        connections.push(socket);
        return socket;
      }),
    );
    at.pools.push(pool);
    at.handle = () => {
      throw new Error('no request of a stranger is read');
    };
    const answers = Array.from({ length: 20 }, () => ask(pool, '/'));
    for (const answer of answers) {
      await answer.whole();
      expect([answer.status, answer.text.includes('E_MESH_PEER')]).toEqual([403, true]);
    }
    expect(connections).toHaveLength(1);
    await expect.poll(() => connections[0]!.destroyed).toBe(true);
    unknown = at.gateway.identity;
    at.handle = answerPath;
    await expectServing(pool);
    expect(connections).toHaveLength(2);
  });

  it('a node has so many requests at a time, on all connections together; more are refused', async () => {
    const carriers: ChannelConnection[] = [];
    const refused: (string | undefined)[] = [];
    const open = (carrier: ChannelConnection): void => {
      carrier.open({
        data: () => undefined,
        ended: () => undefined,
        drained: () => undefined,
        closed: (error) => refused.push(error?.message),
      });
    };
    for (let made = 0; made < limits.connections / channels_max + 1; made++) {
      let carrier: ChannelConnection | undefined;
      const socket = await pinnedConnect(at.node.record, at.gateway.identity, {
        read: (bytes) => carrier!.read(Buffer.from(bytes)),
        protocols: [channel_protocol],
      });
      carrier = new ChannelConnection(socket);
      carriers.push(carrier);
      const channels = made < limits.connections / channels_max ? channels_max : 3;
      for (let count = 0; count < channels; count++) open(carrier);
    }
    await expect.poll(() => refused.length, { timeout: 10_000 }).toBe(3);
    expect(new Set(refused)).toEqual(
      new Set(['the other side gave the channel up: the node has as many requests as it may']),
    );
    for (const carrier of carriers) carrier.destroy(new Error('the test goes on'));
    const { pool } = at.newPool();
    await expect
      .poll(async () => {
        const answer = ask(pool, '/room');
        await expect.poll(() => answer.over).toBe(true);
        return answer.status;
      })
      .toBe(200);
  }, 30_000);

  it('closing the port ends all that is on its channels', async () => {
    const closing = at.newServer();
    const closing_port = await closing.listen('127.0.0.1', undefined);
    at.handle = (request, response) => {
      request.resume();
      response.writeHead(200, { 'content-type': 'text/event-stream' });
      response.write(event);
    };
    const { pool } = at.newPool(closing_port);
    const answers = Array.from({ length: 5 }, () => ask(pool, '/'));
    await expect.poll(() => answers.every(({ length }) => length > 0)).toBe(true);
    await closing.close();
    await expect.poll(() => answers.every(({ errors }) => errors.length === 1)).toBe(true);
    const late = ask(pool, '/');
    await expect.poll(() => late.errors.length).toBe(1);
  });
});
