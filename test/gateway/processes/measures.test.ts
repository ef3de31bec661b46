/** What is measured of answers is one thing for all workers, whoever relayed them. */
import { setTimeout as delay } from 'node:timers/promises';
import { afterEach, expect, it } from 'vitest';
import { until } from '../support.ts';
import { GatewayOfWorkers } from './gateway-of-workers.ts';

let gateway: GatewayOfWorkers | undefined;
afterEach(async () => {
  await gateway?.close();
  gateway = undefined;
});

/** So many answers are measured before they count for the next one. */
const enough = 25;
/** Told each second. */
const told_ms = 1500;
/** Of two requests for which the longest answer that nobody knows better is held, the second is refused. */
const budget = { tokens: 900, window: 'total' } as const;

/** Of a key with so small a budget, by two connections of each worker at once. */
async function statuses(of: GatewayOfWorkers): Promise<number[]> {
  const { key } = await of.newKey({ budget });
  const clients = Array.from({ length: 4 }, () => of.client());
  const asked = await Promise.all(clients.map((client) => client.ask(key, { max_tokens: undefined })));
  return asked.map(({ status }) => status);
}

it('workers hold as much for an answer as those of the others took, also one that has just begun', async () => {
  gateway = await GatewayOfWorkers.start(2);
  gateway.before = () => delay(100);
  expect(await statuses(gateway)).toContain(429);
  gateway.before = async () => undefined;
  // One connection is one worker.
  const client = gateway.client();
  const { key } = await gateway.newKey();
  for (let asked = 0; asked < enough; asked++) expect((await client.ask(key)).status).toBe(200);
  await delay(told_ms);
  gateway.before = () => delay(100);
  expect(await statuses(gateway)).toEqual([200, 200, 200, 200]);

  const before = gateway.workers();
  for (const pid of before) process.kill(pid, 'SIGKILL');
  await until(async () => {
    const now = gateway!.workers();
    if (now.length < 2 || now.some((pid) => before.includes(pid))) return false;
    const { status } = await gateway!.client().ask(key);
    return status === 200;
  }, 'others in their place');
  expect(await statuses(gateway)).toEqual([200, 200, 200, 200]);
}, 120_000);
