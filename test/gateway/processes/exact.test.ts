/** Gateways of several processes as they are: what counts for all of them is as exact as in one. */
import { setTimeout as delay } from 'node:timers/promises';
import { afterEach, expect, it } from 'vitest';
import { json, until } from '../support.ts';
import { GatewayOfWorkers, perAnswer } from './gateway-of-workers.ts';

let gateway: GatewayOfWorkers | undefined;
afterEach(async () => {
  await gateway?.close();
  gateway = undefined;
});

for (const processes of [2, 3])
  it(`${processes} workers answer to one budget, and not once more than it allows`, async () => {
    gateway = await GatewayOfWorkers.start(processes);
    const answers = 100;
    const budget = answers * perAnswer;
    const { id, key } = await gateway.newKey({ budget: { tokens: budget, window: 'total' } });
    const clients = Array.from({ length: 4 * processes }, () => gateway!.client());
    const answered: string[] = [];
    await Promise.all(
      clients.map(async (client) => {
        for (;;) {
          const { status, request_id, text } = await client.ask(key);
          if (status === 200) answered.push(request_id);
          else {
            expect({ status, text }).toMatchObject({
              status: 429,
              text: expect.stringContaining('insufficient_quota'),
            });
            // What is held for others that run may come back; what was used does not.
            if (!text.includes('are held for requests that run')) return;
          }
        }
      }),
    );
    expect(answered).toHaveLength(answers);
    expect(await gateway.spent(id)).toBe(budget);
    const rows = (await gateway.recorded()).filter(({ request_id }) => !gateway!.own.has(request_id));
    expect(
      rows
        .filter(({ status }) => status === 200)
        .map(({ request_id }) => request_id)
        .sort(),
    ).toEqual([...answered].sort());
    expect(new Set(rows.map(({ request_id }) => request_id)).size).toBe(rows.length);
    // They went over all of the workers, not over one that is quick.
    for (const client of clients) expect(client.answered).toBeGreaterThan(0);
  }, 120_000);

it('3 workers let in as many requests of a key at a time, and a minute, as it may have over all of them', async () => {
  gateway = await GatewayOfWorkers.start(3);
  let running = 0;
  let running_max = 0;
  gateway.before = async () => {
    running_max = Math.max(running_max, ++running);
    await delay(5);
    running--;
  };
  const atATime = await gateway.newKey({ concurrent_requests: 3 });
  const clients = Array.from({ length: 12 }, () => gateway!.client());
  let refused = 0;
  await Promise.all(
    clients.map(async (client) => {
      for (let sent = 0; sent < 20; sent++) {
        const { status } = await client.ask(atATime.key);
        if (status === 429) refused++;
        else expect(status).toBe(200);
      }
    }),
  );
  expect(running_max).toBe(3);
  expect(refused).toBeGreaterThan(0);

  // Of the minute before, less and less counts: all of these are to fall into one.
  const left_ms = 60_000 - (Date.now() % 60_000);
  if (left_ms < 20_000) await delay(left_ms);
  const aMinute = await gateway.newKey({ requests_per_minute: 50 });
  const statuses = (
    await Promise.all(
      clients.map(async (client) => {
        const own: number[] = [];
        for (let sent = 0; sent < 10; sent++) own.push((await client.ask(aMinute.key)).status);
        return own;
      }),
    )
  ).flat();
  expect(statuses.filter((status) => status === 200)).toHaveLength(50);
  expect(statuses.filter((status) => status === 429)).toHaveLength(70);
  const { headers } = await clients[0]!.ask(aMinute.key);
  expect(headers).toMatchObject({
    'x-ratelimit-limit-requests': '50',
    'x-ratelimit-remaining-requests': '0',
  });
}, 120_000);

it('a key that is revoked, blocked or changed is so at every worker when that was answered', async () => {
  gateway = await GatewayOfWorkers.start(3);
  const clients = Array.from({ length: 6 }, () => gateway!.client());
  const all = async (key: string): Promise<number[]> =>
    Promise.all(clients.map(async (client) => (await client.ask(key)).status));
  const each = (status: number): number[] => clients.map(() => status);
  for (let turn = 0; turn < 10; turn++) {
    const { id, key } = await gateway.newKey();
    // Known to all, though one alone made it.
    expect(await all(key)).toEqual(each(200));
    await gateway.admin(`/hpcserve/v1/keys/${id}/block`, 'POST', {});
    expect(await all(key)).toEqual(each(401));
    await gateway.admin(`/hpcserve/v1/keys/${id}/unblock`, 'POST', {});
    expect(await all(key)).toEqual(each(200));
    await gateway.admin(`/hpcserve/v1/keys/${id}`, 'PATCH', { models: ['another'] });
    expect(await all(key)).toEqual(each(403));
    await gateway.admin(`/hpcserve/v1/keys/${id}`, 'DELETE', {});
    expect(await all(key)).toEqual(each(401));
  }
}, 120_000);

it('devices are charged once for the time in which several workers use them', async () => {
  gateway = await GatewayOfWorkers.start(2);
  let running = 0;
  let since_ms = 0;
  let busy_ms = 0;
  gateway.before = async () => {
    if (running++ === 0) since_ms = performance.now();
    await delay(400);
    if (--running === 0) busy_ms += performance.now() - since_ms;
  };
  const { key } = await gateway.newKey();
  const clients = Array.from({ length: 8 }, () => gateway!.client());
  const asked = await Promise.all(clients.map((client) => client.ask(key)));
  const ids = new Set(asked.map(({ request_id }) => request_id));
  const rows = (await gateway.recorded()).filter(({ request_id }) => ids.has(request_id));
  expect(rows).toHaveLength(8);
  const device_s = rows.reduce((sum, row) => sum + row.device_s, 0);
  // Counted by each worker for itself, it would be twice as much.
  expect(device_s).toBeGreaterThan(0.9 * (busy_ms / 1000));
  expect(device_s).toBeLessThan(1.5 * (busy_ms / 1000));
}, 60_000);

it('a request at a worker that waits for another replica is charged with no devices meanwhile', async () => {
  const waits_s = 2;
  gateway = await GatewayOfWorkers.start(2);
  const { key } = await gateway.newKey();
  const { replica } = gateway;
  const answer = replica.answer;
  replica.answer = json({ error: { message: 'it is ending', code: 'E_WORKER_DRAINING' } }, 503);
  const before = replica.requests.length;
  const asked = gateway.client().ask(key);
  await until(() => replica.requests.length > before, 'the request to be refused');
  await delay(waits_s * 1000);
  await gateway.another(answer);
  const { status, request_id } = await asked;
  expect(status).toBe(200);
  const { device_s, duration_ms } = (await gateway.recorded()).find((one) => one.request_id === request_id)!;
  expect(device_s).toBeGreaterThan(0);
  expect(device_s).toBeLessThan(duration_ms / 1000 - waits_s / 2);
}, 60_000);
