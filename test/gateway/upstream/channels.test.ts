/** Requests that share one connection to a node: the pool of a gateway before the port of an agent. */
import { mkdtempSync, rmSync } from 'node:fs';
import type { IncomingMessage, ServerResponse } from 'node:http';
import { createServer } from 'node:https';
import { type AddressInfo, connect, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Duplex } from 'node:stream';
import type { TLSSocket } from 'node:tls';
import { Pool } from 'undici';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { SessionServer } from '../../../agent/node/session-server.ts';
import type { AnswerReceiver } from '../../../gateway/upstream/connection.ts';
import { type Call, UpstreamPool } from '../../../gateway/upstream/pool.ts';
import { SessionWays } from '../../../gateway/upstream/session-ways.ts';
import { channels_max } from '../../../mesh/channels/channel-connection.ts';
import {
  ChannelConnection,
  channel_protocol,
  LocalSession,
  pinnedConnect,
  pinnedConnector,
  RelayFallback,
  RendezvousRegistry,
  SessionIdentity,
  sessionOrigin,
  sessionTlsServerOptions,
} from '../../../mesh/index.ts';
import type { SessionMetadata } from '../../../spec/session-record.ts';
import { limits } from '../../../spec/wire.ts';

const MiB = 1024 * 1024;
const event = `data: {"choices":[{"delta":{"content":" token"}}]}\n\n`;
const folder = mkdtempSync(join(tmpdir(), 'hpcserve-channels-'));

type Handler = (request: IncomingMessage, response: ServerResponse) => void;

let registry: RendezvousRegistry;
let node: LocalSession;
let gateway: LocalSession;
let server: SessionServer;
let port: number;
let handle: Handler = answerPath;
const pools: UpstreamPool[] = [];

function described(role: SessionMetadata['role']): SessionMetadata {
  return {
    ...{ role, node: 'a', hostname: 'a', site: 'test', provider: 'tester@test', tier: 'stable' },
    ...{ devices: [], models: [], addresses: [] },
  };
}

function newServer(headers_timeout_ms = 15_000): SessionServer {
  return new SessionServer({
    registry,
    identityOf: (id) => (id === node.id ? node.identity : undefined),
    headers_timeout_ms,
    handle: (_session, request, response) => handle(request, response),
  });
}

beforeAll(async () => {
  registry = await RendezvousRegistry.open(join(folder, 'mesh'), { create: true, poll_ms: 50 });
  node = await LocalSession.join(registry, described('engine'));
  gateway = await LocalSession.join(registry, described('gateway'));
  server = newServer();
  port = await server.listen('127.0.0.1', undefined);
  await node.update({ lifecycle: 'SERVING', metadata: { addresses: [{ host: '127.0.0.1', port }] } });
});
afterEach(() => {
  for (const pool of pools.splice(0)) pool.destroy(new Error('the test is over'));
  handle = answerPath;
});
afterAll(async () => {
  await server.close();
  await registry.close();
  rmSync(folder, { recursive: true, force: true });
});

/** Answers with the path that was asked for. */
function answerPath(request: IncomingMessage, response: ServerResponse): void {
  request.resume();
  const text = String(request.url);
  response.setHeader('content-length', text.length);
  response.end(text);
}

interface Dialled {
  pool: UpstreamPool;
  /** Connections that it made. */
  sockets: TLSSocket[];
}

function newPool(at_port = port, protocols: readonly string[] = [channel_protocol, 'http/1.1']): Dialled {
  const sockets: TLSSocket[] = [];
  const record = {
    ...node.record,
    metadata: { ...node.record.metadata, addresses: [{ host: '127.0.0.1', port: at_port }] },
  };
  const ways = new SessionWays(async (read) => {
    const socket = await pinnedConnect(record, gateway.identity, { read, protocols });
    sockets.push(socket);
    return socket;
  });
  const pool = new UpstreamPool(ways);
  pools.push(pool);
  return { pool, sockets };
}

/** What a receiver was told. */
class Answer implements AnswerReceiver {
  status = 0;
  readonly chunks: Buffer[] = [];
  ends = 0;
  readonly errors: Error[] = [];
  call: Call | undefined;
  /** Whether it takes bytes as they come. */
  reads = true;

  onHead({ status }: { status: number }): void {
    this.status = status;
  }

  onBody(bytes: Buffer): boolean {
    this.chunks.push(bytes);
    return this.reads;
  }

  onEnd(): void {
    this.ends++;
  }

  onError(error: Error): void {
    this.errors.push(error);
  }

  get length(): number {
    return this.chunks.reduce((sum, { length }) => sum + length, 0);
  }

  get text(): string {
    return Buffer.concat(this.chunks).toString();
  }

  get over(): boolean {
    return this.ends + this.errors.length > 0;
  }

  async whole(): Promise<this> {
    await expect.poll(() => this.over, { timeout: 30_000, interval: 2 }).toBe(true);
    expect(this.errors).toEqual([]);
    expect(this.ends).toBe(1);
    return this;
  }
}

function ask(pool: UpstreamPool, path: string, body: Buffer[] = []): Answer {
  const length = body.reduce((sum, piece) => sum + piece.length, 0);
  const answer = new Answer();
  const head = `POST ${path} HTTP/1.1\r\nhost: node\r\ncontent-length: ${length}\r\n\r\n`;
  answer.call = pool.send(head, body, answer);
  return answer;
}

async function expectServing(pool: UpstreamPool): Promise<void> {
  expect((await ask(pool, '/still').whole()).text).toBe('/still');
}

/** Writes until it is told to wait, again and again. */
function flood(response: ServerResponse, bytes: Buffer, total: number): { written: number } {
  const state = { written: 0 };
  const more = (): void => {
    while (state.written < total && !response.destroyed) {
      state.written += bytes.length;
      if (!response.write(bytes)) {
        response.once('drain', more);
        return;
      }
    }
    response.end();
  };
  more();
  return state;
}

describe('requests on one connection', () => {
  it('are answered in any order, and a channel serves the next request', async () => {
    const seen = new Set<unknown>();
    handle = (request, response) => {
      seen.add(request.socket);
      setTimeout(() => answerPath(request, response), 50 - Number(request.url!.slice(1)));
    };
    const { pool, sockets } = newPool();
    for (let round = 0; round < 3; round++) {
      const answers = Array.from({ length: 40 }, (_, at) => ask(pool, `/${at}`));
      for (const [at, answer] of answers.entries()) expect((await answer.whole()).text).toBe(`/${at}`);
    }
    expect([sockets.length, seen.size, pool.busy]).toEqual([1, 40, 0]);
    expect(sockets[0]!.alpnProtocol).toBe(channel_protocol);
  });

  it('stream: what all of them say in one turn comes in one piece', async () => {
    const responses: ServerResponse[] = [];
    handle = (request, response) => {
      request.resume();
      response.writeHead(200, { 'content-type': 'text/event-stream' });
      responses.push(response);
    };
    const { pool, sockets } = newPool();
    const answers = Array.from({ length: 32 }, () => ask(pool, '/'));
    await expect.poll(() => responses.length).toBe(32);
    for (const response of responses) response.write(event);
    await expect.poll(() => answers.every(({ length }) => length === event.length)).toBe(true);
    const before_bytes = sockets[0]!.bytesRead;
    for (const response of responses) response.write(event);
    await expect.poll(() => answers.every(({ length }) => length === 2 * event.length)).toBe(true);
    // Each event with the frames of a channel and of HTTP around it; around all of them, one record of TLS.
    const around_bytes = sockets[0]!.bytesRead - before_bytes - 32 * event.length;
    expect(around_bytes).toBeLessThanOrEqual(32 * (8 + 6) + 22);
    for (const response of responses) response.end('data: [DONE]\n\n');
    for (const answer of answers)
      expect((await answer.whole()).text).toBe(`${event}${event}data: [DONE]\n\n`);
  });

  it('bear one client in 51 that never reads, in bounded memory', async () => {
    let slow: { written: number } | undefined;
    handle = (request, response) => {
      request.resume();
      if (request.url === '/slow') slow = flood(response, Buffer.alloc(1000, 'x'), Number.POSITIVE_INFINITY);
      else flood(response, Buffer.alloc(1000, 'y'), 200_000);
    };
    const { pool, sockets } = newPool();
    const stuck = ask(pool, '/slow');
    stuck.reads = false;
    await expect.poll(() => stuck.length).toBeGreaterThan(0);
    const others = Array.from({ length: 50 }, () => ask(pool, '/'));
    for (const other of others) expect((await other.whole()).length).toBe(200_000);
    expect(sockets).toHaveLength(1);
    expect(stuck.over).toBe(false);
    // A window on the way, and what streams of Node's hold.
    expect(slow!.written).toBeLessThan(512 * 1024);
    expect(stuck.length).toBeLessThanOrEqual(128 * 1024);
    stuck.reads = true;
    stuck.call!.resume();
    await expect.poll(() => stuck.length, { timeout: 10_000 }).toBeGreaterThan(2 * MiB);
    stuck.call!.abort();
    await ask(pool, '/').whole();
  }, 60_000);

  it('carry 32 MiB up and 32 MiB down while small streams flow', async () => {
    let received = 0;
    handle = (request, response) => {
      if (request.url === '/big') {
        request.on('data', (chunk: Buffer) => {
          received += chunk.length;
        });
        request.once('end', () => flood(response, Buffer.alloc(64 * 1024, 'z'), 32 * MiB));
      } else answerPath(request, response);
    };
    const { pool, sockets } = newPool();
    const big = ask(pool, '/big', [Buffer.alloc(16 * MiB, 'a'), Buffer.alloc(16 * MiB, 'b')]);
    let beside = 0;
    while (!big.over) {
      await expectServing(pool);
      beside++;
    }
    await big.whole();
    expect([received, big.length]).toEqual([32 * MiB, 32 * MiB]);
    expect(beside).toBeGreaterThan(20);
    expect(sockets).toHaveLength(1);
  }, 60_000);

  it('carry an event of 10 MB, whole', async () => {
    const large = `data: {"x":"${'e'.repeat(10_000_000)}"}\n\n`;
    handle = (request, response) => {
      request.resume();
      response.writeHead(200, { 'content-type': 'text/event-stream' });
      response.end(large);
    };
    const { pool } = newPool();
    const answers = [ask(pool, '/'), ask(pool, '/')];
    for (const answer of answers) expect((await answer.whole()).text).toBe(large);
  }, 60_000);

  it('go on beside a session that does not read one of them', async () => {
    let held: IncomingMessage | undefined;
    handle = (request, response) => {
      if (request.url === '/held') held = request;
      else answerPath(request, response);
    };
    const { pool, sockets } = newPool();
    const waiting = ask(pool, '/held', [Buffer.alloc(32 * MiB, 'a')]);
    await expect.poll(() => held !== undefined).toBe(true);
    for (let other = 0; other < 20; other++) await expectServing(pool);
    // The rest of the body has not been copied anywhere.
    expect(sockets[0]!.writableLength).toBeLessThan(400 * 1024);
    expect(waiting.over).toBe(false);
    held!.on('error', () => undefined);
    waiting.call!.abort();
    await expect.poll(() => held!.destroyed).toBe(true);
    await expectServing(pool);
  }, 30_000);
});

describe('what breaks', () => {
  it('is the one request that a client gives up, and its engine learns of it', async () => {
    const closed: string[] = [];
    handle = (request, response) => {
      request.resume();
      response.writeHead(200, { 'content-type': 'text/event-stream' });
      const timer = setInterval(() => response.write(event), 2);
      response.once('close', () => {
        clearInterval(timer);
        closed.push(request.url!);
      });
    };
    const { pool, sockets } = newPool();
    const answers = Array.from({ length: 10 }, (_, at) => ask(pool, `/${at}`));
    await expect.poll(() => answers.every(({ length }) => length > 0)).toBe(true);
    const sent_bytes = sockets[0]!.bytesWritten;
    answers[3]!.call!.abort();
    await expect.poll(() => closed).toEqual(['/3']);
    expect(sockets[0]!.bytesWritten - sent_bytes).toBeLessThanOrEqual(8 + 22);
    const lengths = answers.map(({ length }) => length);
    await expect.poll(() => answers.every(({ length }, at) => at === 3 || length > lengths[at]!)).toBe(true);
    expect([answers[3]!.length, answers[3]!.over, pool.busy]).toEqual([lengths[3], false, 9]);
  });

  it('is one answer that is cut off: its client is told so, and the others go on', async () => {
    const responses: ServerResponse[] = [];
    handle = (request, response) => {
      request.resume();
      response.writeHead(200, { 'content-type': 'text/event-stream' });
      response.write(event);
      responses.push(response);
    };
    const { pool, sockets } = newPool();
    const [cut, other] = [ask(pool, '/'), ask(pool, '/')];
    await expect.poll(() => cut.length + other.length).toBe(2 * event.length);
    responses[0]!.destroy();
    await expect.poll(() => cut.over).toBe(true);
    expect([cut.ends, cut.errors[0]?.message]).toEqual([0, 'the other side gave the channel up']);
    responses[1]!.end(event);
    expect((await other.whole()).text).toBe(event + event);
    expect(sockets).toHaveLength(1);
  });

  it('are 10,000 requests that are given up at once: the others are whole', async () => {
    let most = 0;
    let now = 0;
    handle = (request, response) => {
      request.resume();
      if (request.url === '/other') {
        setTimeout(() => response.end('other'), 200);
        return;
      }
      most = Math.max(most, ++now);
      response.once('close', () => now--);
    };
    const { pool, sockets } = newPool();
    await ask(pool, '/other').whole();
    const others = Array.from({ length: 20 }, () => ask(pool, '/other'));
    const given: Answer[] = [];
    for (let count = 0; count < 10_000; count++) given.push(ask(pool, '/given-up'));
    setImmediate(() => {
      for (const { call } of given) call!.abort();
    });
    for (const other of others) expect((await other.whole()).text).toBe('other');
    await expect.poll(() => now, { timeout: 10_000 }).toBe(0);
    expect(given.some(({ over }) => over)).toBe(false);
    expect(sockets.length).toBeLessThanOrEqual(11);
    expect(most).toBeLessThanOrEqual(10_000);
    await expect.poll(() => pool.busy).toBe(0);
  }, 60_000);

  it('is the connection: each of 100 streams is told once, and the next request makes another', async () => {
    handle = (request, response) => {
      request.resume();
      response.writeHead(200, { 'content-type': 'text/event-stream' });
      response.write(event);
    };
    const { pool, sockets } = newPool();
    const answers = Array.from({ length: 100 }, () => ask(pool, '/'));
    await expect.poll(() => answers.every(({ length }) => length === event.length)).toBe(true);
    sockets[0]!.destroy();
    await expect.poll(() => answers.every(({ over }) => over)).toBe(true);
    expect(answers.every(({ ends, errors }) => ends === 0 && errors.length === 1)).toBe(true);
    expect(pool.busy).toBe(0);
    handle = answerPath;
    await expectServing(pool);
    expect(sockets).toHaveLength(2);
  });

  it('is a kept connection at the moment it is used: nothing was computed, so it is asked again', async () => {
    const { pool, sockets } = newPool();
    await expectServing(pool);
    handle = (request, response) => {
      // As if it had gone before it heard of the request.
      if (sockets.length === 1) sockets[0]!.destroy();
      else answerPath(request, response);
    };
    const answers = Array.from({ length: 5 }, (_, at) => ask(pool, `/${at}`));
    for (const [at, answer] of answers.entries()) expect((await answer.whole()).text).toBe(`/${at}`);
    expect(sockets).toHaveLength(2);
  });

  it('is a session that ends each connection: a request is not sent for ever', async () => {
    const { pool, sockets } = newPool();
    await expectServing(pool);
    handle = () => {
      for (const socket of sockets) socket.destroy();
    };
    const answer = ask(pool, '/');
    await expect.poll(() => answer.over).toBe(true);
    expect(answer.errors).toHaveLength(1);
    expect(sockets.length).toBeLessThanOrEqual(5);
  });

  it('is the pool itself, with all that is on its way', async () => {
    handle = (request) => void request.resume();
    const { pool, sockets } = newPool();
    const answers = Array.from({ length: 30 }, () => ask(pool, '/'));
    await expect.poll(() => sockets.length).toBe(1);
    pool.destroy(new Error('it has been silent'));
    expect(answers.map(({ errors }) => errors.map(({ message }) => message))).toEqual(
      Array.from({ length: 30 }, () => ['it has been silent']),
    );
    await expect.poll(() => sockets[0]!.destroyed).toBe(true);
    const late = ask(pool, '/');
    await expect.poll(() => late.errors[0]?.message).toBe('it has been silent');
  });
});

describe('other ways', () => {
  it('an agent that does not know channels is asked by HTTP/1.1, on a connection for each request', async () => {
    const seen = new Set<Socket>();
    const old = createServer(
      sessionTlsServerOptions(() => node.identity),
      (request, response) => {
        seen.add(request.socket);
        setTimeout(() => answerPath(request, response), 20);
      },
    );
    await new Promise<void>((resolve) => old.listen(0, '127.0.0.1', resolve));
    const { pool, sockets } = newPool((old.address() as AddressInfo).port);
    const answers = Array.from({ length: 20 }, (_, at) => ask(pool, `/${at}`));
    for (const [at, answer] of answers.entries()) expect((await answer.whole()).text).toBe(`/${at}`);
    // Some were free again before a connection was there that had been begun for their request.
    expect(seen.size).toBeLessThanOrEqual(sockets.length);
    expect(seen.size).toBeGreaterThan(1);
    expect(sockets.every(({ alpnProtocol }) => alpnProtocol === 'http/1.1')).toBe(true);
    pool.destroy(new Error('over'));
    old.closeAllConnections();
    await new Promise<void>((resolve) => old.close(() => resolve()));
  });

  it('a gateway that does not know channels is answered by HTTP/1.1', async () => {
    const pool = new Pool(sessionOrigin(node.record), {
      connect: pinnedConnector(node.record, gateway.identity),
    });
    const answer = await pool.request({ method: 'GET', path: '/old' });
    expect([answer.statusCode, await answer.body.text()]).toEqual([200, '/old']);
    await pool.destroy();
    const { pool: plain, sockets } = newPool(port, ['http/1.1']);
    await expectServing(plain);
    expect(sockets[0]!.alpnProtocol).toBe('http/1.1');
  });

  it('channels go through a peer that relays, too', async () => {
    const relay = new RelayFallback(() => {
      const socket = connect(port, '127.0.0.1');
      return Promise.resolve(Duplex.from({ readable: socket, writable: socket }));
    });
    const away = {
      ...node.record,
      metadata: { ...node.record.metadata, addresses: [] },
    };
    const sockets: TLSSocket[] = [];
    const pool = new UpstreamPool(
      new SessionWays(async (read) => {
        const socket = await pinnedConnect(away, gateway.identity, {
          read,
          relayFallback: relay,
          protocols: [channel_protocol, 'http/1.1'],
        });
        sockets.push(socket);
        return socket;
      }),
    );
    pools.push(pool);
    handle = (request, response) => {
      request.resume();
      flood(response, Buffer.alloc(10_000, 'r'), MiB);
    };
    const answers = Array.from({ length: 10 }, () => ask(pool, '/'));
    for (const answer of answers) expect((await answer.whole()).length).toBeGreaterThanOrEqual(MiB);
    expect(sockets.map(({ alpnProtocol }) => alpnProtocol)).toEqual([channel_protocol]);
  }, 30_000);

  it('headers that come too slowly end their channel alone', async () => {
    const hasty = newServer(600);
    const hasty_port = await hasty.listen('127.0.0.1', undefined);
    const record = {
      ...node.record,
      metadata: { ...node.record.metadata, addresses: [{ host: '127.0.0.1', port: hasty_port }] },
    };
    let carrier: ChannelConnection | undefined;
    const socket = await pinnedConnect(record, gateway.identity, {
      read: (bytes) => carrier!.read(Buffer.from(bytes)),
      protocols: [channel_protocol],
    });
    carrier = new ChannelConnection(socket);
    const texts = ['', ''];
    const closings: (Error | undefined)[][] = [[], []];
    const channels = texts.map((_, at) =>
      carrier!.open({
        data: (bytes) => {
          texts[at] += bytes.toString();
        },
        ended: () => undefined,
        drained: () => undefined,
        closed: (error) => closings[at]!.push(error),
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
        const socket = await pinnedConnect(node.record, unknown, { read, protocols });
        connections.push(socket);
        return socket;
      }),
    );
    pools.push(pool);
    handle = () => {
      throw new Error('no request of a stranger is read');
    };
    const answers = Array.from({ length: 20 }, () => ask(pool, '/'));
    for (const answer of answers) {
      await answer.whole();
      expect([answer.status, answer.text.includes('E_MESH_PEER')]).toEqual([403, true]);
    }
    expect(connections).toHaveLength(1);
    await expect.poll(() => connections[0]!.destroyed).toBe(true);
    unknown = gateway.identity;
    handle = answerPath;
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
      const socket = await pinnedConnect(node.record, gateway.identity, {
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
    const { pool } = newPool();
    await expect
      .poll(async () => {
        const answer = ask(pool, '/room');
        await expect.poll(() => answer.over).toBe(true);
        return answer.status;
      })
      .toBe(200);
  }, 30_000);

  it('closing the port ends all that is on its channels', async () => {
    const closing = newServer();
    const closing_port = await closing.listen('127.0.0.1', undefined);
    handle = (request, response) => {
      request.resume();
      response.writeHead(200, { 'content-type': 'text/event-stream' });
      response.write(event);
    };
    const { pool } = newPool(closing_port);
    const answers = Array.from({ length: 5 }, () => ask(pool, '/'));
    await expect.poll(() => answers.every(({ length }) => length > 0)).toBe(true);
    await closing.close();
    await expect.poll(() => answers.every(({ errors }) => errors.length === 1)).toBe(true);
    const late = ask(pool, '/');
    await expect.poll(() => late.errors.length).toBe(1);
  });
});
