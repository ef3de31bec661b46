/** Workers of a gateway that are killed, and a primary that is. */
import { once } from 'node:events';
import { connect } from 'node:net';
import { afterEach, expect, it } from 'vitest';
import { waitUntil } from '../../../host/wait-until.ts';
import { until } from '../support.ts';
import { type Asked, GatewayOfWorkers, perAnswer } from './gateway-of-workers.ts';

let gateway: GatewayOfWorkers | undefined;
afterEach(async () => {
  await gateway?.close();
  gateway = undefined;
});

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ESRCH') return false;
    throw error;
  }
}

it('workers are killed under load: others take their place, and the ledger has all that was answered, once', async () => {
  gateway = await GatewayOfWorkers.start(2);
  const { id, key } = await gateway.newKey({ budget: { tokens: 1e9, window: 'total' } });
  const answered: string[] = [];
  let done = false;
  const clients = Array.from({ length: 8 }, async () => {
    while (!done) {
      const client = gateway!.client();
      try {
        for (;;) {
          const { status, request_id } = await client.ask(key);
          expect(status).toBe(200);
          answered.push(request_id);
          if (done) return;
        }
      } catch (error) {
        // Its connection ended with its worker: nothing of that request was promised.
        expect((error as NodeJS.ErrnoException).code).toMatch(/^(UND_ERR_SOCKET|ECONNRESET|EPIPE)$/);
      }
    }
  });
  const kills = 4;
  for (let killed = 0; killed < kills; killed++) {
    const before = answered.length;
    await until(() => answered.length >= before + 50, 'answers', 60_000);
    const pid = gateway.workers()[killed % 2]!;
    process.kill(pid, 'SIGKILL');
    await until(
      () => !gateway!.workers().includes(pid) && gateway!.workers().length === 2,
      'another worker in its place',
      30_000,
    );
  }
  const before = answered.length;
  await until(() => answered.length >= before + 100, 'answers of the workers that were started last', 60_000);
  done = true;
  await Promise.all(clients);

  const rows = await gateway.recorded();
  const ids = new Set(rows.map(({ request_id }) => request_id));
  expect(ids.size).toBe(rows.length);
  expect(answered.filter((request_id) => !ids.has(request_id))).toEqual([]);
  // What its key has used is what the ledger says; nothing is held any more for what was under way.
  const ofKey = rows.filter(({ request_id }) => !gateway!.own.has(request_id));
  const used = ofKey.filter(({ status }) => status === 200).length * perAnswer;
  expect(await gateway.spent(id)).toBe(used);
}, 180_000);

it('what was held for a worker that is killed is given back, and what others have under way goes on', async () => {
  gateway = await GatewayOfWorkers.start(2);
  let letGo = (): void => undefined;
  const held = new Promise<void>((resolve) => {
    letGo = resolve;
  });
  const { key } = await gateway.newKey({ concurrent_requests: 2 });
  let arrived = 0;
  gateway.before = async () => {
    arrived++;
    await held;
  };
  const [one, two, three] = [gateway.client(), gateway.client(), gateway.client()];
  const ended = (asked: Promise<Asked>): Promise<Asked | Error> => asked.catch((error: Error) => error);
  const first = ended(one.ask(key));
  const second = ended(two.ask(key));
  await until(() => arrived === 2, 'both requests at the replica');
  expect(await three.ask(key)).toMatchObject({ status: 429 });

  process.kill(gateway.workers()[0]!, 'SIGKILL');
  // Connections go to the worker that has the fewest: one of the two was there, and the third may have been.
  const broken = await Promise.race([first, second]);
  expect(broken).toBeInstanceOf(Error);
  const letIn = async (): Promise<Asked> => {
    const own = gateway!;
    for (let client = own.client(); ; ) {
      const asked = await client.ask(key).catch((error: Error) => error);
      // It was given to the worker that was just killed, before its primary knew.
      if (asked instanceof Error) client = own.client();
      else if (asked.status !== 429) return asked;
    }
  };
  const fourth = letIn();
  // Sent again and again until then: who is starved by others of the machine takes its time.
  await until(() => arrived === 3, 'a request in the place of the one that broke', 45_000);
  expect(await gateway.client().ask(key)).toMatchObject({ status: 429 });
  letGo();
  const outcomes = await Promise.all([first, second]);
  expect(outcomes.filter((outcome) => !(outcome instanceof Error))).toMatchObject([{ status: 200 }]);
  expect(await fourth).toMatchObject({ status: 200 });
}, 120_000);

it('a connection that is on its way to a worker as it is killed has an end', async () => {
  gateway = await GatewayOfWorkers.start(2);
  const { key } = await gateway.newKey();
  for (let round = 0; round < 6; round++) {
    const clients = Array.from({ length: 40 }, () => gateway!.client());
    let left = clients.length;
    const pid = gateway.workers()[round % 2]!;
    process.kill(pid, 'SIGKILL');
    // They come before its primary knows of it, and some are given to it.
    const asked = clients.map((client) =>
      client
        .ask(key)
        .catch((error: Error) => error)
        .finally(() => left--),
    );
    await until(() => left === 0, 'an answer or an error for each', 30_000);
    for (const outcome of await Promise.all(asked))
      if (!(outcome instanceof Error)) expect(outcome.status).toBe(200);
    await until(
      () => !gateway!.workers().includes(pid) && gateway!.workers().length === 2,
      'another worker in its place',
      30_000,
    );
  }
}, 300_000);

it('the primary is killed: its workers end with it, and the ledger has what was answered', async () => {
  gateway = await GatewayOfWorkers.start(3);
  const { key } = await gateway.newKey();
  const clients = Array.from({ length: 6 }, () => gateway!.client());
  const answered: string[] = [];
  const asking = clients.map(async (client) => {
    for (;;) {
      const asked = await client.ask(key).catch((error: Error) => error);
      if (asked instanceof Error) return;
      expect(asked.status).toBe(200);
      answered.push(asked.request_id);
    }
  });
  await until(() => answered.length > 200, 'answers', 60_000);
  const workers = gateway.workers();
  expect(workers).toHaveLength(3);
  await gateway.process.end('SIGKILL');
  await Promise.all(asking);
  expect(
    await waitUntil(() => (workers.some(isAlive) ? undefined : true), { timeout_ms: 5000, interval_ms: 5 }),
  ).toBe(true);
  const { hostname, port } = new URL(gateway.endpoint.url);
  const [error] = (await once(connect(Number(port), hostname), 'error')) as [NodeJS.ErrnoException];
  expect(error.code).toBe('ECONNREFUSED');
  const ids = (await gateway.recorded()).map(({ request_id }) => request_id);
  expect(answered.filter((request_id) => !ids.includes(request_id))).toEqual([]);
}, 120_000);

it('it ends in order: answers that are under way are finished by the workers that have them', async () => {
  gateway = await GatewayOfWorkers.start(2);
  let letGo = (): void => undefined;
  const held = new Promise<void>((resolve) => {
    letGo = resolve;
  });
  let arrived = 0;
  gateway.before = async () => {
    arrived++;
    await held;
  };
  const { key } = await gateway.newKey();
  const asked = [gateway.client(), gateway.client(), gateway.client()].map((client) => client.ask(key));
  await until(() => arrived === 3, 'the requests at the replica');
  const workers = gateway.workers();
  gateway.process.child.kill('SIGTERM');
  await until(() => gateway!.process.stdout.includes('gateway drains'), 'the gateway to drain');
  letGo();
  for (const { status } of await Promise.all(asked)) expect(status).toBe(200);
  expect(await gateway.process.exit).toBe(0);
  expect(workers.filter(isAlive)).toEqual([]);
  expect(await gateway.recorded()).toHaveLength(gateway.own.size + 3);
}, 60_000);

it('it ends in order where all workers have died that were ever given a connection', async () => {
  gateway = await GatewayOfWorkers.start(2);
  const first = gateway.workers();
  for (const pid of first) process.kill(pid, 'SIGKILL');
  // The log says it: whoever asked would be given to one of them.
  const answering = (): number => gateway!.process.stdout.split('a worker answers').length - 1;
  await until(() => answering() === 4, 'two others to answer in their place', 60_000);
  const others = gateway.workers();
  expect(others).toHaveLength(2);
  gateway.process.child.kill('SIGTERM');
  expect(await gateway.process.exit).toBe(0);
  expect([...first, ...others].filter(isAlive)).toEqual([]);
}, 120_000);
