/**
 * A model that runs on two devices which other models share: the smaller part moves to the larger, nobody who reads a
 * stream sees it, and the device is free.
 */
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { synthPresets } from '../../native/synth/presets.ts';
import { synthesize } from '../../native/synth/synthesize.ts';
import { type DeviceReport, deviceReportSchema } from '../../spec/device-report.ts';
import { WorkerHarness } from '../agent/device-worker/support.ts';
import { limit_ms, start_ms } from '../agent/engine/test-backend.ts';
import { Site, unitOf } from '../agent/support.ts';
import { gatewayOf, type SiteGateway } from '../gateway/with-agents.ts';
import { eventually } from '../mesh/support.ts';

const names = ['shared', 'other'];
let site: Site;
let gateway: SiteGateway;

beforeAll(async () => {
  site = await Site.open();
  const units = await Promise.all(
    names.map(async (name, index) => {
      const model_path = join(site.folder, `${name}.gguf`);
      await synthesize({
        path: model_path,
        shape: synthPresets['tiny-llama']!,
        quantization: 'F16',
        seed: 1 + index,
      });
      return unitOf(
        { name, batch_invariant: true, max_sequences: 3, slo: { ttft_ms: 30_000, tpot_ms: 2000 } },
        { engine: 'native', model_path, context_tokens: 1024, kv_tokens: 4096 },
      );
    }),
  );
  // At that pace streams last for longer than all that is to happen while they run.
  await Promise.all([1, 2].map(() => site.start(units, { emulated_step_ms: 40 })));
  gateway = await gatewayOf(site, { continue_ms: 20_000, defragment_ms: 100 });
}, limit_ms(60_000));
afterAll(async () => {
  await gateway?.[Symbol.asyncDispose]();
  await site?.[Symbol.asyncDispose]();
});

async function devices(): Promise<{ session_id: string; report: DeviceReport }[]> {
  const told = (await (await gateway.admin('/hpcserve/v1/devices')).json()) as {
    devices: { session_id: string; report?: unknown }[];
  };
  return told.devices.map(({ session_id, report }) => ({
    session_id,
    report: deviceReportSchema.parse(report),
  }));
}

const asked = (seed: number, max_tokens: number) => ({
  model: 'shared',
  prompt: `Question ${seed}: how long is a queue?`,
  max_tokens,
  min_tokens: max_tokens,
  temperature: 0.8,
  seed,
  stream: true,
});

/** Whole answers of a worker that has nothing else to do, and no pace. */
async function alone(requests: readonly (readonly [seed: number, max_tokens: number])[]): Promise<string[]> {
  const worker = new WorkerHarness();
  try {
    await worker.configure();
    const model_path = join(site.folder, 'shared.gguf');
    await worker.load({ name: 'shared', model_path, batch_invariant: true });
    const texts: string[] = [];
    for (const [seed, max_tokens] of requests)
      texts.push(textOf(await worker.stream('/v1/completions', asked(seed, max_tokens))));
    return texts;
  } finally {
    await worker.close();
  }
}

/** Text and finish reason of a stream, and who began it. */
async function stream(
  seed: number,
  max_tokens: number,
  signal: AbortSignal | null = null,
): Promise<{ session: string; whole: Promise<string> }> {
  const answer = await fetch(`${gateway.url}/v1/completions`, {
    method: 'POST',
    signal,
    headers: { authorization: `Bearer ${gateway.key}`, 'content-type': 'application/json' },
    body: JSON.stringify(asked(seed, max_tokens)),
  });
  expect(answer.status, answer.ok ? '' : await answer.text()).toBe(200);
  return { session: answer.headers.get('x-hpcserve-session')!, whole: answer.text().then(said) };
}

/** Until replicas have said of themselves that so many streams run: that is what routing goes by. */
async function known(streams: number): Promise<void> {
  await eventually(async () => {
    const rows = await gateway.serving('shared');
    const loads = rows.flatMap(({ models }) => models.filter(({ name }) => name === 'shared'));
    const running = loads.reduce((sum, load) => sum + load.running, 0);
    return (running === streams && loads.every(({ unreported }) => unreported === 0)) || undefined;
  }, `${streams} streams to be known of`);
}

function said(events: string): string {
  const datas = events
    .split('\n\n')
    .flatMap((event) => (event.startsWith('data: {') ? [event.slice(6)] : []));
  expect(events.trimEnd().endsWith('data: [DONE]')).toBe(true);
  return textOf(datas.map((data) => JSON.parse(data)));
}

function textOf(list: readonly { choices: { text: string; finish_reason: string }[] }[]): string {
  const choices = list.map((event) => event.choices[0]!);
  return `${choices.map(({ text }) => text).join('')}|${choices.at(-1)!.finish_reason}`;
}

it(
  'moves the smaller part of a model to the larger; texts are as alone, and the device is free',
  async () => {
    await eventually(
      async () => {
        const now = await devices().catch(() => []);
        return now.length === 2 && now.every(({ report }) => report.instances.length === 2)
          ? true
          : undefined;
      },
      'two devices with two models',
      start_ms,
    );
    const lengths = [300, 300, 300, 250];
    const whole = await alone([...lengths.entries()].slice(1));

    // Three fill one device, the fourth goes to the other; then the client of one of the three goes.
    await known(0);
    const streams: Awaited<ReturnType<typeof stream>>[] = [];
    const leaves = new AbortController();
    for (const [index, tokens] of lengths.entries()) {
      streams.push(await stream(index, tokens, index === 0 ? leaves.signal : null));
      await known(streams.length);
    }
    const [larger, , , smaller] = streams.map(({ session }) => session);
    expect(streams.map(({ session }) => session)).toEqual([larger, larger, larger, smaller]);
    expect(smaller).not.toBe(larger);
    const gone = expect(streams[0]!.whole).rejects.toThrow();
    leaves.abort();
    await gone;

    const freed = await eventually(async () => {
      const now = await devices();
      return now.find(
        ({ session_id, report }) => session_id === smaller && report.resting.includes('shared'),
      );
    }, 'the smaller part to be gone');
    expect(freed.report.instances.map(({ model }) => model)).toEqual(['other']);
    expect(freed.report.decisions.find(({ kind }) => kind === 'move')).toMatchObject({
      model: 'shared',
      because: expect.stringMatching(
        /^shared on [0-9a-f]{8} \(batch 1\) is a fragment: shared on [0-9a-f]{8} takes/,
      ),
    });
    // Its weights lie there for the next request, its KV does not.
    expect(freed.report.memory.pool!.reusable_bytes).toBeGreaterThan(2 ** 20);
    const busy = await eventually(async () => {
      const now = (await devices()).find(({ session_id }) => session_id === larger)!.report;
      const { prompts, decoding } = now.instances.find(({ model }) => model === 'shared')!;
      return prompts + decoding === 3 ? now : undefined;
    }, 'the larger part to have all');
    expect(busy.resting).toEqual([]);
    expect(await Promise.all(streams.slice(1).map((one) => one.whole))).toEqual(whole);
    expect(await gateway.continuations()).toBe(1);
    expect(gateway.logged.filter((line) => line.includes('go on elsewhere'))).toHaveLength(1);
  },
  limit_ms(180_000),
);
