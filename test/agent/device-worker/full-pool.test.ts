/** A real worker whose pool is nearly full: who asks for much is answered whole or told so, and nobody else notices. */
import { mkdirSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout } from 'node:timers/promises';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import type { DeviceReport } from '../../../spec/device-report.ts';
import { agentPaths } from '../../../spec/wire.ts';
import { eventually } from '../../mesh/support.ts';
import { limit_ms, test_device } from '../engine/test-backend.ts';
import { type RawAnswer, tinyModel, WorkerHarness } from './support.ts';

let worker: WorkerHarness;
beforeEach(() => {
  worker = new WorkerHarness();
});
afterEach(() => worker.close());

async function report(): Promise<DeviceReport> {
  const { status, text } = await worker.request('GET', agentPaths.device);
  expect(status).toBe(200);
  return JSON.parse(text) as DeviceReport;
}

/** An answer of so many tokens to a prompt of so many. */
function ask(model: string, seed: number, prompt_tokens: number, answer_tokens: number): Promise<RawAnswer> {
  return worker.post('/v1/completions', {
    model,
    prompt: Array.from({ length: prompt_tokens }, (_, at) => (at * 7 + seed) % 200),
    max_tokens: answer_tokens,
    min_tokens: answer_tokens,
    temperature: 0.8,
    seed,
  });
}

function textOf(answer: RawAnswer): string {
  expect(answer.status, answer.text).toBe(200);
  return JSON.parse(answer.text).choices[0].text as string;
}

describe('a request of maximal length on a nearly full pool', () => {
  const context_tokens = 2048;
  const longest = () => ask('one', 9, context_tokens - 100, 100);
  const others = () => Array.from({ length: 6 }, (_, index) => ask('one', index, 300, 120));

  /**
   * Weights of 3.3 MiB, intermediate results, and KV for some 2600 tokens: one of maximal length and one of the others.
   */
  async function start(
    kv_tokens: number,
    { step_ms_min = 0, ...more }: { step_ms_min?: number; slo?: { ttft_ms: number; tpot_ms: number } } = {},
  ): Promise<void> {
    const model_path = await tinyModel(worker.folder, 'tiny-llama');
    await worker.configure({}, { pool_bytes: 8 * 2 ** 20, step_ms_min });
    const shape = { model_path, context_tokens, kv_tokens, batch_invariant: true };
    await worker.load({ name: 'one', ...shape, ...more });
  }

  /** The least that was free of the pool until something is over. */
  async function leastFree(what: Promise<unknown>): Promise<number> {
    let isOver = false;
    const over = (): void => {
      isOver = true;
    };
    what.then(over, over);
    let least = Number.POSITIVE_INFINITY;
    do {
      least = Math.min(least, (await report()).memory.pool!.free_bytes);
      await setTimeout(10);
    } while (!isOver);
    return least;
  }

  async function alone(count = 6): Promise<string[]> {
    const texts: string[] = [];
    for (let index = 0; index < count; index++) texts.push(textOf(await ask('one', index, 300, 120)));
    return texts;
  }

  it('is answered whole where nothing is promised, and the others’ tokens are as alone', async () => {
    await start(16_384);
    const before = await alone();
    const whole = textOf(await longest());
    const answers = others();
    await worker.report('one', ({ running }) => running > 2);
    const long = longest();
    const free_bytes = leastFree(Promise.all([...answers, long]));
    expect((await Promise.all(answers)).map(textOf)).toEqual(before);
    expect(textOf(await long)).toBe(whole);
    const { instances } = await report();
    expect(instances[0]).toMatchObject({ prompts: 0, decoding: 0, waiting: 0, kv_used_bytes: 0 });
    // What the KV of those that have ended lay in may be given back in parts by now.
    expect(await free_bytes).toBeLessThan(2 * 2 ** 20);
  });

  it(
    'is refused at once, with a time, where its SLO is promised and there is no room; the others go on',
    async () => {
      // At that pace the three run for seconds: they are there when the fourth comes.
      await start(3072, { step_ms_min: 20, slo: { ttft_ms: 60_000, tpot_ms: 5000 } });
      const before = await alone(3);
      const whole = textOf(await longest());
      const answers = [0, 1, 2].map((index) => ask('one', index, 300, 120));
      await worker.report('one', ({ running }) => running === 3);
      const refused = await longest();
      expect(refused.status, refused.text).toBe(429);
      expect(Number(refused.headers['retry-after'])).toBeGreaterThanOrEqual(1);
      expect(JSON.parse(refused.text).error.message).toMatch(
        /expected to need KV for \d+ tokens, and it has room for 3072/,
      );
      expect((await Promise.all(answers)).map(textOf)).toEqual(before);
      // Who comes back later is answered whole.
      expect(textOf(await longest())).toBe(whole);
      const longer = await ask('one', 9, context_tokens, 100);
      expect([longer.status, JSON.parse(longer.text).error.code]).toEqual([400, 'context_length_exceeded']);
    },
    limit_ms(60_000),
  );
});

it(
  'where memory falls short after all, the KV of who can wait longest is parked, comes back, and no token changes',
  async () => {
    const model_path = await tinyModel(worker.folder, 'tiny-llama');
    // An iteration takes 8 ms, so that restoring some hundred KiB is cheaper than computing them again, and all run
    // together.
    await worker.configure({}, { step_ms_min: 8 });
    const shape = { model_path, context_tokens: 512, kv_tokens: 1024, max_sequences: 8 };
    await worker.load({ name: 'one', ...shape, batch_invariant: true });
    const indices = Array.from({ length: 8 }, (_, index) => index);
    const alone: string[] = [];
    // They are let in, and grow into another slab, of which a device has four for so many tokens.
    const prompt_tokens = test_device === undefined ? 100 : 200;
    for (const index of indices) alone.push(textOf(await ask('one', index, prompt_tokens, 120)));
    expect((await report()).scheduler.evicted).toBe(0);
    const together = await Promise.all(indices.map((index) => ask('one', index, prompt_tokens, 120)));
    expect(together.map(textOf)).toEqual(alone);
    const { scheduler, decisions, instances } = await report();
    const evictions = decisions.filter(({ kind }) => kind === 'evict').map(({ because }) => because);
    expect(scheduler.evicted).toBeGreaterThan(0);
    const parked = evictions.filter((because) =>
      /^it can wait longest: its next token is due in -?\d+ ms; its KV is parked in host memory: restoring takes \d+ ms, computing \d+ ms$/.test(
        because,
      ),
    );
    expect(parked.length, evictions.join('\n')).toBeGreaterThan(0);
    // All were restored: an answer of a sequence that stays parked never ends.
    expect(instances[0]).toMatchObject({ prompts: 0, decoding: 0, waiting: 0, kv_used_bytes: 0 });
  },
  limit_ms(60_000),
);

it(
  'KV that host memory has no room for waits on disk, comes back, and no token changes',
  async () => {
    const model_path = await tinyModel(worker.folder, 'tiny-llama');
    const folder = join(worker.folder, 'parking');
    mkdirSync(folder);
    // A tenth of the pool is what may wait in host memory: of this one, what two or three of the sequences take.
    await worker.configure(
      {},
      { step_ms_min: 8, pool_bytes: 8 * 2 ** 20, parking: { folder, bytes_max: 2 ** 30 } },
    );
    const shape = {
      model_path,
      context_tokens: 512,
      kv_tokens: 1024,
      max_sequences: 8,
      kv_type: 'f32',
    } as const;
    await worker.load({ name: 'one', ...shape, batch_invariant: true });
    const indices = Array.from({ length: 8 }, (_, index) => index);
    const alone: string[] = [];
    // Three have room beside one another.
    for (const three of [
      [0, 1, 2],
      [3, 4, 5],
      [6, 7],
    ]) {
      const answers = three.map((index) => ask('one', index, 100, 200));
      alone.push(...(await Promise.all(answers)).map(textOf));
    }
    expect((await report()).scheduler.evicted).toBe(0);
    const together = indices.map((index) => ask('one', index, 100, 200));
    const waits = await eventually(
      async () => {
        const { scheduler } = await report();
        return (scheduler.parked?.disk_bytes ?? 0) > 0 ? scheduler.parked : undefined;
      },
      'KV on disk',
      limit_ms(15_000),
    );
    expect(waits).toMatchObject({ disk_bytes_per_s: expect.any(Number) });
    expect(waits.disk_trouble).toBeUndefined();
    expect(readdirSync(folder)).toEqual([]);
    expect((await Promise.all(together)).map(textOf)).toEqual(alone);
    const { scheduler, decisions, instances } = await report();
    expect(scheduler.parked).toMatchObject({ memory_bytes: 0, disk_bytes: 0 });
    const evictions = decisions.filter(({ kind }) => kind === 'evict').map(({ because }) => because);
    expect(evictions.join('\n')).toMatch(
      /its KV is parked on disk: restoring takes \d+ ms, computing \d+ ms/,
    );
    expect(instances[0]).toMatchObject({ prompts: 0, decoding: 0, waiting: 0, kv_used_bytes: 0 });
  },
  limit_ms(60_000),
);

it(
  'an idle instance leaves its tensors behind, and comes back with them: nothing is loaded again',
  async () => {
    const model_path = await tinyModel(worker.folder, 'tiny-llama');
    // Longer than the pause between load and request, on any machine: it must not rest there already.
    await worker.configure({}, { sharing: { keep_alive_ms: 3000 } });
    await worker.load({ name: 'one', model_path, batch_invariant: true });
    const first = textOf(await ask('one', 1, 20, 20));
    const rested = await worker.report('one', ({ weights }) => weights?.resting === true);
    const { bytes, resident_bytes } = rested.weights!;
    expect(bytes).toBeGreaterThan(2 ** 20);
    expect(resident_bytes).toBe(bytes);
    const { memory, resting, instances } = await report();
    expect([resting, instances]).toEqual([['one'], []]);
    expect(memory.pool).toMatchObject({
      weights_bytes: 0,
      kv_bytes: 0,
      reusable_bytes: bytes,
      resident_models: [{ model: 'one', bytes }],
    });
    expect(textOf(await ask('one', 1, 20, 20))).toBe(first);
    const { decisions } = await report();
    const loads = decisions.filter(({ kind }) => kind === 'load').map(({ because }) => because);
    expect(loads).toEqual([
      expect.stringMatching(/^0 MB were there, 3 MB came in/),
      '3 MB were there: nothing was missing',
    ]);
  },
  limit_ms(30_000),
);
