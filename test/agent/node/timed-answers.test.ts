/** Which answers of an engine count for how long answers take: a real server behind what passes requests on. */
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { setTimeout as delay } from 'node:timers/promises';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { AnswerPace } from '../../../agent/node/answer-pace.ts';
import { AnswerTimes } from '../../../agent/node/answer-times.ts';
import { type HandOver, proxyRequest } from '../../../agent/node/proxy.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import { eventually } from '../../mesh/support.ts';

const answer_ms = 300;
const deadlines = { first_token_ms: 30_000, between_tokens_ms: 30_000, total_ms: 30_000 };
const times = new AnswerTimes();
let in_flight = 0;
let handOver: HandOver | undefined;
let engine: Server;
let agent: Server;

const listening = (server: Server): Promise<Server> =>
  new Promise((resolve) => server.listen(0, '127.0.0.1', () => resolve(server)));
const portOf = (server: Server): number => (server.address() as AddressInfo).port;

beforeAll(async () => {
  engine = await listening(
    createServer(async (request, response) => {
      request.resume();
      if (request.url === '/refused') return response.writeHead(400).end('{}');
      if (request.url!.startsWith('/stream')) {
        response.writeHead(200, { 'content-type': 'text/event-stream' });
        response.write('data: first\n\n');
      }
      // These are ended by the agent.
      if (request.url === '/stream/late' || request.url === '/stream/handed') return undefined;
      await delay(answer_ms);
      return response.end('data: [DONE]\n\n');
    }),
  );
  agent = await listening(
    createServer((incoming, outgoing) => {
      in_flight++;
      proxyRequest({
        incoming,
        outgoing,
        upstream: { kind: 'loopback', port: portOf(engine) },
        // Longer than a first event takes on any machine: this one is to end behind that.
        deadlines: incoming.url === '/stream/late' ? { ...deadlines, total_ms: 2000 } : deadlines,
        traffic: {
          in_flight: 1,
          passed: 0,
          streams: 0,
          answer_bytes: 0,
          pace: new AnswerPace(),
          times,
          unanswered: new Set(),
        },
        times: incoming.url === '/tokens' ? undefined : times,
        answer_headers: {},
        onSessionEnd: () => () => undefined,
        onHandOver: (callback) => {
          handOver = callback;
          return () => undefined;
        },
        onEnd: () => {
          in_flight--;
        },
      });
    }),
  );
});
afterAll(() => {
  for (const server of [engine, agent]) server.close();
});

async function ask(path: string, signal?: AbortSignal): Promise<number> {
  const options = { method: 'POST', body: '{}', signal: signal ?? null };
  const answer = await fetch(`http://127.0.0.1:${portOf(agent)}${path}`, options);
  await answer.text();
  return answer.status;
}

test('answers that came whole count, refusals and such as their clients left do not', async () => {
  expect([await ask('/refused'), await ask('/tokens')]).toEqual([400, 200]);
  await expect(ask('/stream', AbortSignal.timeout(answer_ms / 3))).rejects.toThrow();
  await eventually(async () => (in_flight === 0 ? true : undefined), 'it is seen that the client left');
  expect([times.answer_ms, times.left_ms(performance.now())]).toEqual([0, []]);
  // Streams that end with an error event end well by HTTP, and are not whole.
  expect(await ask('/stream/late')).toBe(200);
  const handed = await fetch(`http://127.0.0.1:${portOf(agent)}/stream/handed`, { method: 'POST' });
  handOver!(new HpcserveError('E_AGENT_NOT_READY', { what: 'its job ends' }));
  expect([handed.status, await handed.text()]).toEqual([200, expect.stringContaining('its job ends')]);
  await eventually(async () => (in_flight === 0 ? true : undefined), 'the ends');
  expect([times.answer_ms, times.left_ms(performance.now())]).toEqual([0, []]);
  const asked = ask('/stream');
  await eventually(async () => (in_flight === 1 ? true : undefined), 'the request');
  expect(times.left_ms(performance.now())).toHaveLength(1);
  expect(await asked).toBe(200);
  expect(times.answer_ms).toBeGreaterThanOrEqual(answer_ms);
  expect(times.first_token_ms).toBeGreaterThan(0);
  expect(times.first_token_ms).toBeLessThan(times.answer_ms);
  await eventually(async () => (in_flight === 0 ? true : undefined), 'the end');
  expect(times.left_ms(performance.now())).toEqual([]);
});
