/** Connections to one node, whose port is the agent's own: as many as there are requests, no storm of handshakes. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { TLSSocket } from 'node:tls';
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest';
import { SessionServer } from '../../../agent/node/session-server.ts';
import type { AnswerReceiver } from '../../../gateway/upstream/connection.ts';
import { Unsent, UpstreamPool } from '../../../gateway/upstream/pool.ts';
import { SessionWays } from '../../../gateway/upstream/session-ways.ts';
import { channel_protocol, LocalSession, pinnedConnect, RendezvousRegistry } from '../../../mesh/index.ts';
import type { SessionMetadata } from '../../../spec/session-record.ts';

const folder = mkdtempSync(join(tmpdir(), 'hpcserve-pool-'));
const head = headOf('/');
/** What the node does not answer. */
const never = '/never';
/** As many as one key may let wait at a gateway: three times as many as a node bears handshakes. */
const burst = 768;

let registry: RendezvousRegistry;
let node: LocalSession;
let gateway: LocalSession;
let server: SessionServer;
let port: number;
/** Requests at the node that it does not answer. */
let arrived = 0;

function headOf(path: string): string {
  return `GET ${path} HTTP/1.1\r\nhost: node\r\ncontent-length: 0\r\n\r\n`;
}

function described(role: SessionMetadata['role']): SessionMetadata {
  return {
    ...{ role, node: 'a', hostname: 'a', site: 'test', provider: 'tester@test', tier: 'stable' },
    ...{ devices: [], models: [], addresses: [] },
  };
}

beforeAll(async () => {
  registry = await RendezvousRegistry.open(join(folder, 'mesh'), { create: true, poll_ms: 50 });
  node = await LocalSession.join(registry, described('engine'));
  gateway = await LocalSession.join(registry, described('gateway'));
  server = new SessionServer({
    registry,
    identityOf: (id) => (id === node.id ? node.identity : undefined),
    handle: (_session, request, response) => {
      if (request.url === never) {
        arrived++;
        return;
      }
      response.setHeader('content-length', 2);
      response.end('ok');
    },
  });
  port = await server.listen('127.0.0.1', undefined);
  await node.update({ lifecycle: 'SERVING', metadata: { addresses: [{ host: '127.0.0.1', port }] } });
});
afterAll(async () => {
  await server.close();
  await registry.close();
  rmSync(folder, { recursive: true, force: true });
});

function pool(
  protocols: readonly string[],
  unheardSince_ms?: () => number,
): {
  pool: UpstreamPool;
  counted: { handshakes: number; most: number; all: number };
} {
  const counted = { handshakes: 0, most: 0, all: 0 };
  const ways = new SessionWays(async (read) => {
    counted.all++;
    counted.most = Math.max(counted.most, ++counted.handshakes);
    try {
      return await pinnedConnect(node.record, gateway.identity, { read, timeout_ms: 20_000, protocols });
    } finally {
      counted.handshakes--;
    }
  });
  return { counted, pool: new UpstreamPool(ways, unheardSince_ms) };
}

function send(to: UpstreamPool, path = '/'): Promise<number> {
  return new Promise((resolve, reject) => {
    let status = 0;
    const receiver: AnswerReceiver = {
      onHead: (answer) => {
        status = answer.status;
      },
      onBody: () => true,
      onEnd: () => resolve(status),
      onError: reject,
    };
    to.send(headOf(path), [], receiver);
  });
}

function failureOf(asked: Promise<number>): Promise<unknown> {
  return asked.then(
    () => undefined,
    (error: unknown) => error,
  );
}

describe('a burst of requests for one node', () => {
  it('is answered whole, over one connection', async () => {
    const { pool: many, counted } = pool([channel_protocol, 'http/1.1']);
    const answers = await Promise.all(Array.from({ length: burst }, () => send(many)));
    expect(new Set(answers)).toEqual(new Set([200]));
    expect(counted.all).toBe(1);
    expect(many.busy).toBe(0);
    many.destroy(new Error('the test is over'));
  }, 60_000);

  it('is answered whole by HTTP/1.1, over as few connections as are free by then', async () => {
    const { pool: many, counted } = pool(['http/1.1']);
    const answers = await Promise.all(Array.from({ length: burst }, () => send(many)));
    expect(new Set(answers)).toEqual(new Set([200]));
    expect(counted.most).toBeLessThanOrEqual(32);
    expect(counted.all).toBeLessThan(burst);
    expect(many.busy).toBe(0);
    many.destroy(new Error('the test is over'));
  }, 60_000);

  it('fails at once where the node cannot be reached', async () => {
    let tries = 0;
    const ways = new SessionWays(async () => {
      tries++;
      await new Promise((resolve) => setTimeout(resolve, 50));
      throw new Error('nobody listens');
    });
    const dead = new UpstreamPool(ways);
    const began_ms = performance.now();
    const ends = await Promise.allSettled(Array.from({ length: burst }, () => send(dead)));
    expect(ends.every(({ status }) => status === 'rejected')).toBe(true);
    expect(performance.now() - began_ms).toBeLessThan(1000);
    // They wait for the same connection; those that began before all were there, and those after.
    expect(tries).toBeLessThanOrEqual(2);
    expect(dead.busy).toBe(0);
    dead.destroy(new Error('the test is over'));
  });

  it('that are given up while nothing answers leaves nothing behind', async () => {
    const stuck = new UpstreamPool(new SessionWays(() => new Promise(() => {})));
    const receiver: AnswerReceiver = { onHead() {}, onBody: () => true, onEnd() {}, onError() {} };
    const calls = Array.from({ length: 10_000 }, () => stuck.send(head, [], receiver));
    expect(stuck.busy).toBe(10_000);
    for (const call of calls) call.abort();
    expect(stuck.busy).toBe(0);
    stuck.destroy(new Error('the test is over'));
  });

  it('ends with its pool, those included that have no connection yet', async () => {
    const stuck = new UpstreamPool(new SessionWays(() => new Promise(() => {})));
    const ends = Promise.allSettled(Array.from({ length: 40 }, () => send(stuck)));
    stuck.destroy(new Error('its session has ended'));
    expect((await ends).map((end) => end.status === 'rejected' && end.reason.message)).toEqual(
      Array.from({ length: 40 }, () => 'its session has ended'),
    );
    await expect(send(stuck)).rejects.toThrow('its session has ended');
  });
});

describe('requests whose pool ends', () => {
  const silence = new Error('it has been silent');

  /** A request that the node has and does not answer. */
  async function unanswered(by: UpstreamPool): Promise<Promise<unknown>[]> {
    const before = arrived;
    const failure = failureOf(send(by, never));
    await expect.poll(() => arrived).toBe(before + 1);
    return [failure];
  }

  it('failed of it where they were sent before the session was missed, and were not sent otherwise', async () => {
    let isReachable = true;
    const ways = new SessionWays((read) =>
      isReachable
        ? pinnedConnect(node.record, gateway.identity, { read, protocols: ['http/1.1'] })
        : new Promise(() => {}),
    );
    const by = new UpstreamPool(ways);
    const [early] = await unanswered(by);
    const unheard_since_ms = performance.now();
    const [late] = await unanswered(by);
    isReachable = false;
    const queued = failureOf(send(by));
    by.destroy(silence, unheard_since_ms);
    expect(await early).toBe(silence);
    for (const failure of [late, queued, failureOf(send(by))]) {
      expect(await failure).toBeInstanceOf(Unsent);
      expect(await failure).toMatchObject({ message: silence.message });
    }
  });

  /** A clock that stands still at what it is, since the registry's own waits are reckoned by it, too. */
  async function inOneMoment(test: (now_ms: number) => Promise<void>): Promise<void> {
    const now_ms = performance.now();
    const clock = vi.spyOn(performance, 'now').mockReturnValue(now_ms);
    try {
      await test(now_ms);
    } finally {
      clock.mockRestore();
    }
  }

  it('failed of it on a kept connection, too, where the session was heard until then', () =>
    inOneMoment(async (now_ms) => {
      const { pool: by } = pool(['http/1.1'], () => now_ms);
      expect(await send(by)).toBe(200);
      const [again] = await unanswered(by);
      by.destroy(silence);
      expect(await again).toBe(silence);
    }));

  it('were not sent where their connection may have been gone before them', () =>
    inOneMoment(async (now_ms) => {
      const { pool: by } = pool(['http/1.1'], () => now_ms - 1);
      expect(await send(by)).toBe(200);
      const [again] = await unanswered(by);
      by.destroy(silence);
      expect(await again).toBeInstanceOf(Unsent);
    }));

  it('were not sent where there is no way to the session', async () => {
    const dead = new UpstreamPool(new SessionWays(() => Promise.reject(new Error('it is another session'))));
    expect(await failureOf(send(dead))).toBeInstanceOf(Unsent);
    dead.destroy(silence);
  });
});

describe('a request whose kept connection breaks', () => {
  /** The node has the request on a connection that was used before, ends that, and lets nobody in from then on. */
  async function failureAtEnd(protocols: readonly string[], unheardSince_ms: () => number): Promise<unknown> {
    const sockets: TLSSocket[] = [];
    let isThere = true;
    const ways = new SessionWays(async (read) => {
      if (!isThere) throw new Error('nobody listens');
      const socket = await pinnedConnect(node.record, gateway.identity, { read, protocols });
      sockets.push(socket);
      return socket;
    });
    const by = new UpstreamPool(ways, unheardSince_ms);
    expect(await send(by)).toBe(200);
    const before = arrived;
    const failure = failureOf(send(by, never));
    await expect.poll(() => arrived).toBe(before + 1);
    isThere = false;
    for (const socket of sockets) socket.destroy();
    expect(await failure).toBeInstanceOf(Error);
    by.destroy(new Error('the test is over'));
    return failure;
  }

  it.each(['http/1.1', channel_protocol])(
    'may have ended a session that was heard until then, and cannot be reached any more: %s',
    async (protocol) => {
      const failure = await failureAtEnd([protocol], () => Number.POSITIVE_INFINITY);
      expect(failure).not.toBeInstanceOf(Unsent);
    },
  );

  it.each(['http/1.1', channel_protocol])(
    'has ended no session that was missed before: %s',
    async (protocol) => {
      expect(await failureAtEnd([protocol], () => 0)).toMatchObject({
        name: 'Unsent',
        message: 'nobody listens',
      });
    },
  );
});
