/** The load generator of the gateway's benches: requests come when they are due, and what one waited counts. */
import { createServer, type RequestListener } from 'node:http';
import type { AddressInfo } from 'node:net';
import { expect, it } from 'vitest';
import type { Arrivals } from '../../../bench/gateway/open-loop.ts';
import { atRate, compileOpenLoop } from '../../../bench/gateway/open-loop.ts';
import { scratchFolder } from '../../mesh/support.ts';

const body = '{"model":"tiny"}';

async function measured(answer: RequestListener, arrivals: Arrivals): ReturnType<typeof atRate> {
  await using scratch = await scratchFolder();
  const server = createServer((request, response) => {
    request.resume().once('end', () => answer(request, response));
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const { port } = server.address() as AddressInfo;
  const load = {
    folder: scratch.path,
    url: `http://127.0.0.1:${port}/v1/chat/completions`,
    key: 'hsk-of-this-test',
    body,
    cores: [0],
    taskset: 'taskset',
  };
  try {
    return await atRate(compileOpenLoop(scratch.path), load, arrivals);
  } finally {
    server.closeAllConnections();
    await new Promise((resolve) => server.close(resolve));
  }
}

it.each([
  ['with their length', { 'content-length': '2' }],
  ['in chunks', {}],
])('takes answers %s, and as long as each needs', async (_how, headers) => {
  const asked: (string | undefined)[] = [];
  const latencies = await measured(
    ({ method, headers: sent }, response) => {
      asked.push([method, sent.authorization, sent['content-length']].join(' '));
      setTimeout(() => {
        response.writeHead(200, headers);
        response.write('{');
        response.end('}');
      }, 50);
    },
    { rate_per_s: 200, duration_s: 1 },
  );
  expect(latencies.requests).toBe(200);
  expect(asked).toHaveLength(200);
  expect(new Set(asked)).toEqual(new Set([`POST Bearer hsk-of-this-test ${body.length}`]));
  expect(latencies.p50_ms).toBeGreaterThan(49);
});

it('what is due while a server is silent has waited, though nobody could send it', async () => {
  const silent_ms = 1000;
  let began_ms: number | undefined;
  const latencies = await measured(
    (_request, response) => {
      began_ms ??= performance.now();
      setTimeout(() => response.end('ok'), Math.max(0, began_ms + silent_ms - performance.now()));
    },
    { rate_per_s: 400, duration_s: 1 },
  );
  expect(latencies.requests).toBe(400);
  // Half of them are due in the first half of the silence. Who sends the next when the last one is answered has 64.
  expect(latencies.p50_ms).toBeGreaterThan(silent_ms / 4);
});

it('says of a request that was refused with which status, and of a connection that broke', async () => {
  const few = { rate_per_s: 200, duration_s: 0.1 };
  await expect(measured((_request, response) => response.writeHead(503).end('no'), few)).rejects.toThrow(
    '503',
  );
  await expect(measured((_request, response) => response.destroy(), few)).rejects.toThrow(
    'a connection ended',
  );
});
