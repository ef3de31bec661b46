/** Answers that are kept, asked for in the moment in which they end, and of another process of the gateway. */
import { rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { GatewayOfWorkers } from '../processes/gateway-of-workers.ts';
import { chunkEvent, doneEvent, stream } from '../support.ts';

const rounds = 20;

let gateway: GatewayOfWorkers;
let headers: Record<string, string>;
beforeAll(async () => {
  gateway = await GatewayOfWorkers.start(2, { responses_kept_s: 3600 });
  const { key } = await gateway.newKey();
  headers = { authorization: `Bearer ${key}`, 'content-type': 'application/json' };
  const streamed = stream([chunkEvent('hello'), chunkEvent('', 'stop'), doneEvent]);
  const message = { role: 'assistant', content: 'hello' };
  const whole = { model: 'tiny', created: 1, choices: [{ index: 0, message, finish_reason: 'stop' }] };
  gateway.replica.answer = (request, response) => {
    if ((JSON.parse(request.body) as { stream?: boolean }).stream) return streamed(request, response);
    response.writeHead(200, { 'content-type': 'application/json' });
    response.end(JSON.stringify(whole));
  };
}, 60_000);
afterAll(() => gateway?.close());

async function create(stream: boolean): Promise<string> {
  const body = JSON.stringify({ model: 'tiny', input: 'hi', stream });
  const answer = await fetch(`${gateway.endpoint.url}/v1/responses`, { method: 'POST', headers, body });
  const text = await answer.text();
  expect([answer.status, text]).toEqual([200, expect.stringContaining('"status":"completed"')]);
  return /"id":"(resp_\w+)"/.exec(text)![1]!;
}

async function statusOf(id: string, method: string): Promise<number> {
  const answer = await fetch(`${gateway.endpoint.url}/v1/responses/${id}`, {
    method,
    headers: { authorization: headers.authorization! },
  });
  await answer.arrayBuffer();
  return answer.status;
}

it.each([true, false])(
  'they are there, and go when they are deleted (stream: %s)',
  async (stream) => {
    for (let round = 0; round < rounds; round++) {
      const id = await create(stream);
      expect([round, await statusOf(id, 'GET')]).toEqual([round, 200]);
      const other = await create(stream);
      expect([round, await statusOf(other, 'DELETE'), await statusOf(other, 'GET')]).toEqual([
        round,
        200,
        404,
      ]);
    }
  },
  30_000,
);

it('answers come, though they cannot be kept', async () => {
  const folder = join(gateway.folder, 'responses');
  rmSync(folder, { recursive: true });
  writeFileSync(folder, '');
  for (const stream of [true, false]) expect(await statusOf(await create(stream), 'GET')).not.toBe(200);
}, 30_000);
