/** Real agents and workers on slices that cores stand in for: a request goes to the link that nobody reads over. */
import { statSync } from 'node:fs';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { deepModel } from '../../agent/streaming/support.ts';
import { type RunningAgent, Site, unitOf } from '../../agent/support.ts';
import { eventually } from '../../mesh/support.ts';
import { gatewayOf, type SiteGateway } from '../with-agents.ts';

const mib = 2 ** 20;
let site: Site;
let gateway: SiteGateway;
let second: RunningAgent;

beforeAll(async () => {
  site = await Site.open();
  const model_path = await deepModel('tiny-llama', 'BF16', 1, 16);
  const slice = (node_index: number, first_device: number, name: string, slo = {}) =>
    unitOf(
      { name, engine: 'native', kernels: 'ggml', batch_invariant: false, weights: 'streamed', slo },
      {
        unit: `${name}-${node_index}`,
        engine: 'native',
        device_kind: 'mig',
        node_index,
        first_device,
        model_path,
        context_tokens: 2048,
        kv_tokens: 4096,
        weight_bytes: statSync(model_path).size,
        memory: { device_bytes: 64 * mib, kv_bytes: 8 * mib, arena_bytes: 4 * mib, share: 0.25 },
      },
    );
  // So patient that its own steps, however long they take here, are no load beside what a neighbour reads.
  const patient = { ttft_ms: 60_000, tpot_ms: 60_000 };
  const units = [0, 1].flatMap((node) => [slice(node, 0, 'm', patient), slice(node, 1, `beside-${node}`)]);
  const agent = await site.start(units, {
    ...{ emulated: 'cpu', device_model: 'GH200-96GB-3g.48gb', device_memory_bytes: 256 * mib },
    node_count: 2,
    emulated_step_ms: 5,
  });
  second = agent.onNode(1);
  gateway = await gatewayOf(site);
  await gateway.untilServing('m', 2, 60_000);
  for (const node of [0, 1]) await gateway.untilServing(`beside-${node}`, 1, 60_000);
}, 120_000);
afterAll(async () => {
  await gateway?.[Symbol.asyncDispose]();
  await second?.kill();
  await site?.[Symbol.asyncDispose]();
});

/** The node that answers. */
async function ask(model: string): Promise<string> {
  const { response } = await gateway
    .client()
    .completions.create({ model, prompt: 'Who reads?', max_tokens: 3, temperature: 0 })
    .withResponse();
  return response.headers.get('x-hpcserve-node')!;
}

interface Row {
  node: string;
  link?: { devices: number; reading: number; due_bytes_per_s: number; capacity_bytes_per_s?: number };
}

async function linkOf(node: string): Promise<Row['link']> {
  const { devices } = (await (await gateway.admin('/hpcserve/v1/devices')).json()) as { devices: Row[] };
  return devices.find((row) => row.node === node)?.link;
}

/** Heartbeats have told of all that runs: between two of them requests are missing, or still there. */
async function untilRunning(expected: string | undefined): Promise<void> {
  await eventually(
    async () => {
      const models = (await gateway.serving()).flatMap((session) => session.models);
      const isTold = ({ name, running, unreported }: (typeof models)[number]): boolean =>
        running === (name === expected ? 1 : 0) && unreported === 0;
      return models.length === 4 && models.every(isTold) ? true : undefined;
    },
    `${expected ?? 'nothing'} alone to run`,
  );
}

it('is the other node, whichever it is whose link a neighbour reads over; and the link is shown', async () => {
  // Steps of all of them are measured.
  for (const model of ['m', 'beside-0', 'beside-1', 'm']) await ask(model);
  for (const [node, other] of [
    [0, 'n1'],
    [1, 'n0'],
  ] as const) {
    const stopped = new AbortController();
    const stream = await gateway.client().completions.create(
      {
        ...{ model: `beside-${node}`, prompt: 'Read on', max_tokens: 1900, temperature: 0, stream: true },
        ...{ ignore_eos: true },
      },
      { signal: stopped.signal },
    );
    const events = stream[Symbol.asyncIterator]();
    await events.next();
    await untilRunning(`beside-${node}`);
    for (let request = 0; request < 8; request++) expect(await ask('m'), `request ${request}`).toBe(other);
    const link = (await linkOf(`n${node}`))!;
    expect(link).toMatchObject({ devices: 2, reading: 1 });
    expect(link.due_bytes_per_s).toBeGreaterThan(mib);
    expect(link.capacity_bytes_per_s).toBeGreaterThan(link.due_bytes_per_s);
    // It has not ended meanwhile.
    expect((await events.next()).done).toBe(false);
    stopped.abort();
    await untilRunning(undefined);
  }
}, 90_000);
