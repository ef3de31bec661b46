/** The comparison with a real router, by routers whose choices are known. */
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { text } from 'node:stream/consumers';
import { afterEach, expect, it } from 'vitest';
import { CountingReplicas } from '../../../bench/prefix/counting-replicas.ts';
import { compareChoices, describeAgreement, promptOf } from '../../../bench/prefix/real-router.ts';
import { CacheAwareModel, cacheAware } from '../../../solver/routing-simulator/other-routers.ts';
import { drawConversations, type ReplayedTrace } from '../../../solver/routing-simulator/requests.ts';

const settings = {
  cache_threshold: 0.5,
  balance_abs_threshold: 8,
  balance_rel_threshold: 1.1,
  fallback: 'smallest-tree',
} as const;

const drawn = drawConversations({ seed: 3, conversations: 400, per_s: 1, system_prompts: 3 });
const trace: ReplayedTrace = { ...drawn, requests: drawn.requests.slice(0, 150) };

let servers: Server[] = [];
let replicas: CountingReplicas | undefined;
afterEach(async () => {
  for (const server of servers) {
    server.closeAllConnections();
    server.close();
  }
  servers = [];
  await replicas?.[Symbol.asyncDispose]();
});

/** A router that sends the requests where `choose` says, by their numbers. */
async function router(to: CountingReplicas, choose: (number: number) => number): Promise<string> {
  const server = createServer(async (request, response) => {
    const body = await text(request);
    const number = Number((JSON.parse(body) as { user: string }).user);
    const answer = await fetch(to.urls[choose(number)]!, { method: 'POST', body });
    response.end(await answer.text());
  });
  servers.push(server);
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', () => resolve()));
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

it('says how often a router chose as modelled, and what its replicas would find', async () => {
  replicas = await CountingReplicas.start(3);
  const inTurn = await router(replicas, (number) => number % 3);
  const seen = await compareChoices(
    { url: inTurn, replicas },
    trace,
    new CacheAwareModel(settings),
    cacheAware(settings),
    1000,
  );
  const { match, loads, fallback } = seen.by;
  expect(match.chosen + loads.chosen + fallback.chosen).toBe(150);
  // Whoever takes them in turn meets the longest match by chance.
  expect(match.agreed).toBeGreaterThan(0);
  expect(match.agreed).toBeLessThan(match.chosen);
  expect(seen.found).toBeLessThan(seen.found_as_modelled);
  expect(describeAgreement('smallest-tree', seen)[0]).toContain(`the longest match ${match.agreed} of `);
});

it('finds no difference in a router that is the model', async () => {
  replicas = await CountingReplicas.start(3);
  // What the model chooses when it goes its own way: the same that it is asked for, request by request.
  const chosen: number[] = [];
  const alone = cacheAware(settings);
  const spied = {
    choose: (...args: Parameters<typeof alone.choose>): number => {
      const one = alone.choose(...args);
      chosen.push(one);
      return one;
    },
  };
  const first = await router(replicas, (number) => number % 3);
  await compareChoices({ url: first, replicas }, trace, new CacheAwareModel(settings), spied, 1000);
  const same = await router(replicas, (number) => chosen[number]!);
  const seen = await compareChoices(
    { url: same, replicas },
    trace,
    new CacheAwareModel(settings),
    cacheAware(settings),
    1000,
  );
  for (const { chosen: all, agreed } of Object.values(seen.by)) expect(agreed).toBe(all);
  expect(seen.by.match.chosen).toBeGreaterThan(20);
  expect(seen.found).toBe(seen.found_as_modelled);
});

it('writes prompts that begin alike exactly where their blocks do', () => {
  const one = promptOf({ blocks: Uint32Array.from([1, 2, 3]) });
  expect(promptOf({ blocks: Uint32Array.from([1, 2, 4]) }).slice(0, 32)).toBe(one.slice(0, 32));
  expect(promptOf({ blocks: Uint32Array.from([1, 2, 4]) })).not.toBe(one);
  expect(one).toHaveLength(48);
});
