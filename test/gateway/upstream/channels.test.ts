/** Requests that share one connection to a node: the pool of a gateway before the port of an agent. */
import type { IncomingMessage, ServerResponse } from 'node:http';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { channel_protocol } from '../../../mesh/index.ts';
import { type Answer, AskedNode, answerPath, ask, event, expectServing, flood, MiB } from './support.ts';

let at: AskedNode;

beforeAll(async () => {
  at = await AskedNode.open();
});
afterEach(() => at.reset());
afterAll(() => at.close());

describe('requests on one connection', () => {
  it('are answered in any order, and a channel serves the next request', async () => {
    const seen = new Set<unknown>();
    at.handle = (request, response) => {
      seen.add(request.socket);
      setTimeout(() => answerPath(request, response), 50 - Number(request.url!.slice(1)));
    };
    const { pool, sockets } = at.newPool();
    for (let round = 0; round < 3; round++) {
      const answers = Array.from({ length: 40 }, (_, number) => ask(pool, `/${number}`));
      for (const [number, answer] of answers.entries())
        expect((await answer.whole()).text).toBe(`/${number}`);
    }
    expect([sockets.length, seen.size, pool.busy]).toEqual([1, 40, 0]);
    expect(sockets[0]!.alpnProtocol).toBe(channel_protocol);
  });

  it('stream: what all of them say in one turn comes in one piece', async () => {
    const responses: ServerResponse[] = [];
    at.handle = (request, response) => {
      request.resume();
      response.writeHead(200, { 'content-type': 'text/event-stream' });
      responses.push(response);
    };
    const { pool, sockets } = at.newPool();
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
    at.handle = (request, response) => {
      request.resume();
      if (request.url === '/slow') slow = flood(response, Buffer.alloc(1000, 'x'), Number.POSITIVE_INFINITY);
      else flood(response, Buffer.alloc(1000, 'y'), 200_000);
    };
    const { pool, sockets } = at.newPool();
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
    at.handle = (request, response) => {
      if (request.url === '/big') {
        request.on('data', (chunk: Buffer) => {
          received += chunk.length;
        });
        request.once('end', () => flood(response, Buffer.alloc(64 * 1024, 'z'), 32 * MiB));
      } else answerPath(request, response);
    };
    const { pool, sockets } = at.newPool();
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
    at.handle = (request, response) => {
      request.resume();
      response.writeHead(200, { 'content-type': 'text/event-stream' });
      response.end(large);
    };
    const { pool } = at.newPool();
    const answers = [ask(pool, '/'), ask(pool, '/')];
    for (const answer of answers) expect((await answer.whole()).text).toBe(large);
  }, 60_000);

  it('go on beside a session that does not read one of them', async () => {
    let held: IncomingMessage | undefined;
    at.handle = (request, response) => {
      if (request.url === '/held') held = request;
      else answerPath(request, response);
    };
    const { pool, sockets } = at.newPool();
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
    at.handle = (request, response) => {
      request.resume();
      response.writeHead(200, { 'content-type': 'text/event-stream' });
      const timer = setInterval(() => response.write(event), 2);
      response.once('close', () => {
        clearInterval(timer);
        closed.push(request.url!);
      });
    };
    const { pool, sockets } = at.newPool();
    const answers = Array.from({ length: 10 }, (_, number) => ask(pool, `/${number}`));
    await expect.poll(() => answers.every(({ length }) => length > 0)).toBe(true);
    const sent_bytes = sockets[0]!.bytesWritten;
    answers[3]!.call!.abort();
    await expect.poll(() => closed).toEqual(['/3']);
    expect(sockets[0]!.bytesWritten - sent_bytes).toBeLessThanOrEqual(8 + 22);
    const lengths = answers.map(({ length }) => length);
    await expect
      .poll(() => answers.every(({ length }, number) => number === 3 || length > lengths[number]!))
      .toBe(true);
    expect([answers[3]!.length, answers[3]!.over, pool.busy]).toEqual([lengths[3], false, 9]);
  });

  it('is one answer that is cut off: its client is told so, and the others go on', async () => {
    const responses: ServerResponse[] = [];
    at.handle = (request, response) => {
      request.resume();
      response.writeHead(200, { 'content-type': 'text/event-stream' });
      response.write(event);
      responses.push(response);
    };
    const { pool, sockets } = at.newPool();
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
    at.handle = (request, response) => {
      request.resume();
      if (request.url === '/other') {
        setTimeout(() => response.end('other'), 200);
        return;
      }
      most = Math.max(most, ++now);
      response.once('close', () => now--);
    };
    const { pool, sockets } = at.newPool();
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
    at.handle = (request, response) => {
      request.resume();
      response.writeHead(200, { 'content-type': 'text/event-stream' });
      response.write(event);
    };
    const { pool, sockets } = at.newPool();
    const answers = Array.from({ length: 100 }, () => ask(pool, '/'));
    await expect.poll(() => answers.every(({ length }) => length === event.length)).toBe(true);
    sockets[0]!.destroy();
    await expect.poll(() => answers.every(({ over }) => over)).toBe(true);
    expect(answers.every(({ ends, errors }) => ends === 0 && errors.length === 1)).toBe(true);
    expect(pool.busy).toBe(0);
    at.handle = answerPath;
    await expectServing(pool);
    expect(sockets).toHaveLength(2);
  });

  it('is a kept connection at the moment it is used: nothing was computed, so it is asked again', async () => {
    const { pool, sockets } = at.newPool();
    await expectServing(pool);
    at.handle = (request, response) => {
      // As if it had gone before it heard of the request.
      if (sockets.length === 1) sockets[0]!.destroy();
      else answerPath(request, response);
    };
    const answers = Array.from({ length: 5 }, (_, number) => ask(pool, `/${number}`));
    for (const [number, answer] of answers.entries()) expect((await answer.whole()).text).toBe(`/${number}`);
    expect(sockets).toHaveLength(2);
  });

  it('is a session that ends each connection: a request is not sent for ever', async () => {
    const { pool, sockets } = at.newPool();
    await expectServing(pool);
    at.handle = () => {
      for (const socket of sockets) socket.destroy();
    };
    const answer = ask(pool, '/');
    await expect.poll(() => answer.over).toBe(true);
    expect(answer.errors).toHaveLength(1);
    expect(sockets.length).toBeLessThanOrEqual(5);
  });

  it('is the pool itself, with all that is on its way', async () => {
    at.handle = (request) => void request.resume();
    const { pool, sockets } = at.newPool();
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
