/** A client that is behind while an engine sends many events at once. */
import { once } from 'node:events';
import { createServer, request as httpRequest, type IncomingMessage, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { setImmediate as turn } from 'node:timers/promises';
import { expect, test } from 'vitest';
import { AnswerPace } from '../../../agent/node/answer-pace.ts';
import { AnswerTimes } from '../../../agent/node/answer-times.ts';
import { proxyRequest } from '../../../agent/node/proxy.ts';

const event = `data: ${JSON.stringify({ choices: [{ delta: { content: 'x'.repeat(100) } }] })}\n\n`;
/** More than the kernel and Node hold for a client that does not read. */
const events = 100_000;
const deadlines = { first_token_ms: 30_000, between_tokens_ms: 30_000, total_ms: 60_000 };

const listening = (server: Server): Promise<Server> =>
  new Promise((resolve) => server.listen(0, '127.0.0.1', () => resolve(server)));
const portOf = (server: Server): number => (server.address() as AddressInfo).port;

test('is waited for once, however many events one read brings, and gets all of them', async () => {
  const engine = await listening(
    createServer(async (request, response) => {
      request.resume();
      response.writeHead(200, { 'content-type': 'text/event-stream' });
      for (let sent = 0; sent < events; sent += 100) {
        response.socket!.cork();
        for (let at = 0; at < 100; at++) response.write(event);
        response.socket!.uncork();
        if (response.writableNeedDrain) await once(response, 'drain');
      }
      response.end();
    }),
  );
  let listeners_max = 0;
  const agent = await listening(
    createServer((incoming, outgoing) => {
      outgoing.on('newListener', (name) => {
        if (name === 'drain') listeners_max = Math.max(listeners_max, outgoing.listenerCount('drain') + 1);
      });
      proxyRequest({
        incoming,
        outgoing,
        upstream: { kind: 'loopback', port: portOf(engine) },
        deadlines,
        traffic: {
          in_flight: 1,
          passed: 0,
          streams: 0,
          answer_bytes: 0,
          pace: new AnswerPace(),
          times: new AnswerTimes(),
          unanswered: new Set(),
        },
        answer_headers: {},
        onSessionEnd: () => () => undefined,
        onHandOver: () => () => undefined,
        onEnd: () => undefined,
      });
    }),
  );
  try {
    const asked = httpRequest({ port: portOf(agent), host: '127.0.0.1', method: 'POST' });
    asked.end('{}');
    const [answer] = (await once(asked, 'response')) as [IncomingMessage];
    // Not read before the agent waits: a client that is fast enough would never be behind.
    await expect.poll(() => listeners_max).toBeGreaterThan(0);
    let received = 0;
    for await (const chunk of answer) {
      received += (chunk as Buffer).length;
      await turn();
    }
    expect(received).toBe(events * Buffer.byteLength(event));
    // Node's own, of the writes before the head's, and ours.
    expect(listeners_max).toBeLessThanOrEqual(2);
  } finally {
    for (const server of [agent, engine]) server.close();
  }
});
