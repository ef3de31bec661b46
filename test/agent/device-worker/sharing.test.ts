/**
 * One device, several models: promises are kept or refused, profiles are measured and kept, and all of it can be seen.
 */
import { mkdirSync, readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import type { DeviceReport } from '../../../spec/device-report.ts';
import { sharedDeviceViewSchema } from '../../../spec/device-view.ts';
import { agentPaths, headers } from '../../../spec/wire.ts';
import { eventually } from '../../mesh/support.ts';
import { slow_device } from '../engine/test-backend.ts';
import { tinyModel, WorkerHarness } from './support.ts';

/** Every iteration takes at least this long, so that SLOs do not depend on the machine. */
const step_ms = 20;
const slow_step_ms = 50;
const too_slow =
  'it asks for a pace, or for hundreds of tokens, each of which may take tenths of a second here';
/** Of what is tried on such a device, too. */
const limit_ms = slow_device ? 600_000 : 60_000;
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

const asking = (model: string, max_tokens: number, more: object = {}) => ({
  model,
  messages: [{ role: 'user', content: 'What does a queue promise?' }],
  max_tokens,
  min_tokens: max_tokens,
  seed: 3,
  stream: true,
  ...more,
});

async function post(model: string, max_tokens: number) {
  return worker.post('/v1/chat/completions', asking(model, max_tokens));
}

/** Times between the chunks of a stream, ms. */
async function paces(model: string, max_tokens: number): Promise<number[]> {
  const stream = await worker.client.chat.completions.create(asking(model, max_tokens) as never);
  const gaps: number[] = [];
  let last: number | undefined;
  for await (const _ of stream as unknown as AsyncIterable<unknown>) {
    const now = performance.now();
    if (last !== undefined) gaps.push(now - last);
    last = now;
  }
  return gaps;
}

describe('a device that is shared', () => {
  it('refuses what would break a promise, says when to come back, and serves what was promised nothing', async ({
    skip,
  }) => {
    skip(slow_device, too_slow);
    const path = await tinyModel(worker.folder, 'tiny-llama');
    await worker.configure({}, { step_ms_min: step_ms });
    // A step of each: 2 × 20 ms and 10 % do not fit into 30 ms.
    await worker.load({ name: 'one', model_path: path, slo: { ttft_ms: 3000, tpot_ms: 30 } });
    await worker.load({ name: 'other', model_path: path, slo: { ttft_ms: 3000, tpot_ms: 30 } });
    await worker.load({ name: 'batch', model_path: path });
    // It runs for seconds: it is there when the others come.
    const first = worker.post('/v1/chat/completions', asking('one', 250));
    await worker.report('one', ({ running }) => running === 1);
    const refused = await post('other', 5);
    expect(refused.status).toBe(429);
    expect(Number(refused.headers['retry-after'])).toBeGreaterThanOrEqual(1);
    expect(JSON.parse(refused.text).error).toMatchObject({
      code: 'rate_limit_exceeded',
      message: expect.stringMatching(
        /a round of decode steps would take \d+ ms where a token is due every 30 ms/,
      ),
    });
    // Nothing is promised to it: it is let in, and the first goes on at its pace.
    expect((await post('batch', 5)).status).toBe(200);
    expect((await first).status).toBe(200);
    expect((await post('other', 5)).status).toBe(200);

    const { instances, decisions, scheduler } = await report();
    expect(instances.map(({ model, slo, profile }) => [model, slo?.tpot_ms, profile.keeps_level])).toEqual([
      ['batch', undefined, undefined],
      ['one', 30, true],
      ['other', 30, true],
    ]);
    expect(scheduler).toMatchObject({ refused: 1, admitted: 3, evicted: 0 });
    expect(decisions.filter(({ kind }) => kind === 'refuse')).toMatchObject([{ model: 'other' }]);
    expect(decisions.filter(({ kind }) => kind === 'admit')).toMatchObject([
      { model: 'one', because: 'one takes it as 1st of its batch' },
      { model: 'other' },
    ]);
  });

  it('keeps the pace that it promised while models without a promise have more work than there is time', async ({
    skip,
  }) => {
    skip(slow_device, too_slow);
    const path = await tinyModel(worker.folder, 'tiny-llama');
    await worker.configure({}, { step_ms_min: step_ms });
    await worker.load({ name: 'promised', model_path: path, slo: { ttft_ms: 3000, tpot_ms: 80 } });
    await worker.load({ name: 'batch', model_path: path });
    await worker.load({ name: 'more', model_path: path });
    await worker.load({ name: 'yet more', model_path: path });
    // In turn, each would have one iteration of four: 80 ms and what else there is.
    const others = ['batch', 'more', 'yet more'].map((model) => paces(model, 100));
    await worker.report('yet more', ({ running }) => running === 1);
    // So many that a moment in which the machine does something else does not make the mean.
    const gaps = await paces('promised', 150);
    const mean = gaps.reduce((sum, gap) => sum + gap, 0) / gaps.length;
    expect(mean).toBeLessThan(80);
    for (const other of await Promise.all(others)) expect(other.length).toBeGreaterThan(10);
  });

  it('serves a model that the device cannot serve within its SLO, as fast as it can', async ({ skip }) => {
    skip(slow_device, too_slow);
    const path = await tinyModel(worker.folder, 'tiny-llama');
    await worker.configure({}, { step_ms_min: step_ms });
    await worker.load({ name: 'hasty', model_path: path, slo: { tpot_ms: 5 } });
    expect((await post('hasty', 5)).status).toBe(200);
    const { instances, decisions } = await report();
    expect(instances[0]!.profile.keeps_level).toBe(false);
    // Gateways hear of it, and ask faster devices first.
    await worker.report('hasty', ({ too_slow }) => too_slow === true);
    expect(decisions.find(({ kind }) => kind === 'admit')!.because).toMatch(
      /alone it takes longer than its level/,
    );
  });

  it('parts of an answer that has begun are let in whatever they do: several choices, and one that is continued', async ({
    skip,
  }) => {
    skip(slow_device, too_slow);
    const path = await tinyModel(worker.folder, 'tiny-llama');
    await worker.configure({}, { step_ms_min: step_ms });
    await worker.load({ name: 'one', model_path: path, slo: { tpot_ms: 30 }, max_sequences: 2 });
    const three = await worker.post('/v1/chat/completions', asking('one', 5, { n: 3, stream: false }));
    expect(three.status).toBe(200);
    expect(JSON.parse(three.text).choices).toHaveLength(3);
  });

  it('a profile is measured on first use and kept for the next worker; a broken file is measured again', async ({
    skip,
  }) => {
    skip(slow_device, too_slow);
    const path = await tinyModel(worker.folder, 'tiny-llama');
    const cache_dir = join(worker.folder, 'cache');
    mkdirSync(cache_dir);
    const because = async (): Promise<string> => {
      await worker.configure({}, { cache_dir });
      await worker.load({ name: 'one', model_path: path });
      const { decisions, instances } = await report();
      const { prefill_points, decode_points } = instances[0]!.profile;
      expect(prefill_points).toBeGreaterThan(1);
      expect(decode_points).toBeGreaterThan(prefill_points);
      return decisions.find(({ kind }) => kind === 'profile')!.because;
    };
    const again = async (between = () => {}): Promise<string> => {
      worker.send({ type: 'stop' });
      await worker.exited;
      between();
      kept.push(worker);
      worker = new WorkerHarness();
      return because();
    };
    const kept: WorkerHarness[] = [];
    try {
      expect(await because()).toMatch(/were measured in \d+ ms$/);
      const profiles = join(cache_dir, 'profiles');
      const [file] = readdirSync(profiles);
      expect(JSON.parse(readFileSync(join(profiles, file!), 'utf8'))).toMatchObject({
        format: 1,
        model: 'one',
      });
      expect(await again()).toMatch(/are known of it on this device$/);
      const broken = '{"format":1,"samples":{"prefill":[{"tokens":16,"ms":-1}]}}';
      expect(await again(() => writeFileSync(join(profiles, file!), broken))).toMatch(
        /were measured in \d+ ms$/,
      );
    } finally {
      for (const one of kept) await one.close();
    }
  });

  it('how long answers are is kept for the next worker; a broken file is as none', async ({ skip }) => {
    skip(slow_device, too_slow);
    const path = await tinyModel(worker.folder, 'tiny-llama');
    const cache_dir = join(worker.folder, 'cache');
    const former: WorkerHarness[] = [];
    const again = async (): Promise<void> => {
      worker.send({ type: 'stop' });
      await worker.exited;
      former.push(worker);
      worker = new WorkerHarness();
    };
    /** Tokens that the worker expects of an answer that may have 2000. */
    const expected = async (name = 'one'): Promise<number> => {
      // More than a second passes before an answer is longer than any that was seen, and another length is expected.
      await worker.configure({}, { cache_dir, step_ms_min: 2 * step_ms });
      await worker.load({ name, model_path: path, context_tokens: 4096 });
      const stream = await worker.client.chat.completions.create(asking(name, 2000) as never);
      await worker.report(name, ({ running }) => running === 1);
      const { text } = await worker.request('GET', agentPaths.sharing);
      (stream as unknown as { controller: AbortController }).controller.abort();
      const [instance] = sharedDeviceViewSchema.parse(JSON.parse(text)).instances;
      return instance!.requests[0]!.expected_output_tokens;
    };
    try {
      expect(await expected()).toBe(256);
      await Promise.all(Array.from({ length: 12 }, () => post('one', 20)));
      await again();
      // Twelve of 20 tokens beside what is believed of answers that nobody saw.
      expect(await expected()).toBeCloseTo((4 * 256 + 12 * 20) / 16, 0);
      await again();
      // The same file under another name may be asked other things.
      expect(await expected('two')).toBe(256);
      const profiles = join(cache_dir, 'profiles');
      const files = readdirSync(profiles).filter((file) => file.endsWith('.lengths.json'));
      expect(files).toHaveLength(1);
      const file = join(profiles, files[0]!);
      expect(statSync(file).mode & 0o777).toBe(0o600);
      const { format, model, answers, reasoning } = JSON.parse(readFileSync(file, 'utf8'));
      expect([format, model, reasoning, answers.weights.length]).toEqual([1, 'one', undefined, 18]);
      writeFileSync(file, '{"format":1,"model":"one","answers":{"weights":[1],"tokens":[1e9]}}');
      await again();
      expect(await expected()).toBe(256);
    } finally {
      for (const one of former) await one.close();
    }
  });

  it('a model is measured between the steps of others', async ({ skip }) => {
    skip(slow_device, too_slow);
    const path = await tinyModel(worker.folder, 'tiny-llama');
    // Slow iterations, and all of them: half of the measurement is longer than a moment in which the machine stands
    // still.
    await worker.configure({ profile_ms: 10_000 }, { step_ms_min: slow_step_ms });
    await worker.load({
      name: 'promised',
      model_path: path,
      slo: { ttft_ms: 3000, tpot_ms: 3 * slow_step_ms },
    });
    const gaps = paces('promised', 120);
    await worker.report('promised', ({ running }) => running === 1);
    await worker.load({ name: 'new', model_path: path });
    const { because } = (await report()).decisions.findLast(({ kind }) => kind === 'profile')!;
    const took_ms = Number(/were measured in (\d+) ms$/.exec(because)![1]);
    expect(took_ms).toBeGreaterThan(10 * slow_step_ms);
    expect(Math.max(...(await gaps))).toBeLessThan(took_ms / 2);
  });

  it('KV budgets follow what requests need where the pool has not room for all that was asked for; tokens stay the same', async ({
    skip,
  }) => {
    skip(slow_device, too_slow);
    const path = await tinyModel(worker.folder, 'tiny-llama');
    // Each has 16 MiB of KV at most, and 1.7 MiB of weights.
    // At that pace the first of requests that are sent together still runs when the last is let in.
    await worker.configure({}, { pool_bytes: 24 * 2 ** 20, step_ms_min: 15 });
    const shape = { model_path: path, context_tokens: 2048, kv_tokens: 16_384, batch_invariant: true };
    await worker.load({ name: 'one', ...shape, max_sequences: 8 });
    const long = (index: number) => ({
      model: 'one',
      prompt: `${index} ${'a queue of requests that waits '.repeat(40)}`,
      max_tokens: 60,
      min_tokens: 60,
      seed: index,
    });
    const text = async (body: object): Promise<string> => {
      const answer = await worker.post('/v1/completions', body);
      expect(answer.status, answer.text).toBe(200);
      return JSON.parse(answer.text).choices[0].text as string;
    };
    const alone: string[] = [];
    for (let index = 0; index < 8; index++) alone.push(await text(long(index)));
    const budgets = async (): Promise<number[]> => (await report()).instances.map(({ kv_bytes }) => kv_bytes);
    const [whole] = await budgets();
    await worker.load({ name: 'two', ...shape, max_sequences: 8 });
    const [, less] = await budgets();
    expect(await budgets()).toEqual([less, less]);
    expect(less).toBeLessThan(whole! / 4);
    // Now the second needs more; the sum never exceeds the pool.
    const together = await Promise.all([
      ...alone.map((_, index) => text({ ...long(index), model: 'two' })),
      text(long(1)),
    ]);
    expect(together).toEqual([...alone, alone[1]]);
    const { memory, instances, decisions } = await report();
    const promised = instances.reduce((sum, { kv_bytes, weight_bytes }) => sum + kv_bytes + weight_bytes, 0);
    expect(promised).toBeLessThanOrEqual(memory.pool!.pool_bytes);
    expect(instances[1]!.kv_bytes).toBeGreaterThanOrEqual(less!);
    const told = decisions
      .filter(({ kind }) => kind === 'budget')
      .map(({ model, because }) => `${model}: ${because}`);
    // As its requests end, what they needed falls again.
    const fell = /^two: its KV budget fell to \d+ tokens: its requests need no more$/;
    expect(told.filter((words) => fell.test(words)).length).toBeGreaterThanOrEqual(1);
    expect(told.filter((words) => !fell.test(words))).toEqual([
      expect.stringMatching(/^one: its KV budget fell to \d+ tokens, for another model to come$/),
      expect.stringMatching(/^two: KV for \d+ tokens is set aside for it; more as its requests need it$/),
      expect.stringMatching(/^two: its KV budget went from \d+ to \d+ tokens$/),
    ]);
  });

  it('where answers outgrow the KV there is, who can wait longest gives way and comes back; every token is as alone', async ({
    skip,
  }) => {
    skip(slow_device, too_slow);
    const path = await tinyModel(worker.folder, 'tiny-llama');
    // Slow enough that all of them run at the same time.
    await worker.configure({}, { step_ms_min: 8 });
    // Eight prompts of 100 tokens fit, and less than five answers of 120 more.
    const shape = { model_path: path, context_tokens: 256, kv_tokens: 1024, max_sequences: 8 };
    await worker.load({ name: 'one', ...shape, batch_invariant: true });
    const ask = async (index: number): Promise<string> => {
      const answer = await worker.post('/v1/completions', {
        model: 'one',
        prompt: `${index} ${'what is a queue and how long '.repeat(12)}`,
        max_tokens: 120,
        min_tokens: 120,
        seed: index,
      });
      expect(answer.status, answer.text).toBe(200);
      return JSON.parse(answer.text).choices[0].text as string;
    };
    const indices = Array.from({ length: 8 }, (_, index) => index);
    const alone: string[] = [];
    for (const index of indices) alone.push(await ask(index));
    expect(await Promise.all(indices.map(ask))).toEqual(alone);
    const { scheduler, decisions, instances } = await report();
    expect(scheduler.evicted).toBeGreaterThan(0);
    expect(instances[0]).toMatchObject({ prompts: 0, decoding: 0, waiting: 0, kv_used_bytes: 0 });
    expect(decisions.find(({ kind }) => kind === 'evict')!.because).toMatch(
      /^it can wait longest: its next token is due in -?\d+ ms; (its KV is parked in host memory|it is computed again): /,
    );
  });

  it('more models than the pool holds: one that nobody asks for gives way, and comes back with the same tokens', async () => {
    const paths = await Promise.all([1, 2, 3].map((seed) => tinyModel(worker.folder, 'tiny-llama', seed)));
    // Weights of two, and a little KV.
    await worker.configure({}, { pool_bytes: 10 * 2 ** 20 });
    const names = ['one', 'two', 'three'];
    const tokens = slow_device ? 5 : 30;
    const shape = { context_tokens: 512, kv_tokens: 1024, batch_invariant: true };
    for (const [index, name] of names.entries())
      await worker.load({ name, model_path: paths[index]!, ...shape, slo: { tpot_ms: 5000 } });
    expect((await report()).resting).toEqual(['one']);
    const ask = async (model: string): Promise<string> => {
      const answer = await worker.post('/v1/chat/completions', asking(model, tokens, { stream: false }));
      expect(answer.status, answer.text).toBe(200);
      return JSON.parse(answer.text).choices[0].message.content as string;
    };
    const first = [await ask('one'), await ask('two'), await ask('three')];
    expect(new Set(first).size).toBe(3);
    expect((await report()).resting).toHaveLength(1);
    for (const [index, name] of [...names.entries()].reverse()) expect(await ask(name)).toBe(first[index]);
    // All at once: two have the pool, and the third is told when to ask again, or comes when one has ended. Which of
    // both refusals it gets depends on whether its model was there when it was asked.
    const at_once = await Promise.all(
      names.map((model) => worker.post('/v1/chat/completions', asking(model, 100))),
    );
    for (const { status, headers, text } of at_once) {
      expect([200, 429, 503], text).toContain(status);
      if (status !== 200) expect(Number(headers['retry-after'])).toBeGreaterThanOrEqual(1);
    }
    expect(at_once.filter(({ status }) => status === 200).length).toBeGreaterThanOrEqual(2);
    const { decisions } = await report();
    expect(decisions.find(({ kind }) => kind === 'rest')).toMatchObject({
      model: 'one',
      because: expect.stringMatching(/^nobody asks for it, and three has no room/),
    });
  });

  it('an instance that nobody asks for rests after the keep-alive, its tensors stay, and it comes back with the same tokens', async () => {
    const path = await tinyModel(worker.folder, 'tiny-llama');
    await worker.configure({}, { sharing: { keep_alive_ms: 300 } });
    await worker.load({ name: 'one', model_path: path, batch_invariant: true });
    const text = async (): Promise<string> =>
      (await post('one', slow_device ? 5 : 20)).text.replace(/"(id|created)":[^,]*,/g, '');
    const first = await text();
    const rested = await eventually(async () => {
      const now = await report();
      return now.resting.length > 0 ? now : undefined;
    }, 'the keep-alive to be over');
    expect(rested.resting).toEqual(['one']);
    expect(rested.instances).toEqual([]);
    expect(rested.memory.pool).toMatchObject({ weights_bytes: 0, kv_bytes: 0, scratch_bytes: 0 });
    expect(rested.memory.pool!.reusable_bytes).toBeGreaterThan(2 ** 20);
    expect(rested.decisions.at(-1)).toMatchObject({
      kind: 'rest',
      because: expect.stringMatching(/^its keep-alive is over/),
    });
    expect(await text()).toBe(first);
  });

  it(
    'a model leaves only where every request of it can be continued elsewhere',
    async () => {
      const path = await tinyModel(worker.folder, 'tiny-llama');
      await worker.configure({}, { step_ms_min: step_ms });
      await worker.load({ name: 'one', model_path: path });
      await worker.load({ name: 'two', model_path: path });
      const leave = async (): Promise<number> => {
        const { status, text } = await worker.post(agentPaths.move, { model: 'one', because: 'a test' });
        expect(status).toBe(200);
        return (JSON.parse(text) as { moved: number }).moved;
      };
      const fixed = async (): Promise<boolean[]> => {
        const { text } = await worker.request('GET', agentPaths.sharing);
        return sharedDeviceViewSchema.parse(JSON.parse(text)).instances.map((instance) => instance.fixed);
      };
      // Its client did not ask for what it takes to go on elsewhere.
      const long = slow_device ? 20 : 200;
      const stays = post('one', long);
      await worker.report('one', ({ running }) => running === 1);
      expect(await fixed()).toEqual([true, true]);
      expect(await leave()).toBe(0);
      expect((await stays).text).toContain('[DONE]');
      const goes = worker.post('/v1/chat/completions', asking('one', long), { [headers.token_ids]: '1' });
      await worker.report('one', ({ running }) => running === 1);
      expect(await fixed()).toEqual([false, true]);
      expect(await leave()).toBe(1);
      const { text } = await goes;
      expect(text).toContain('E_REQUEST_MOVED');
      expect(text).not.toContain('[DONE]');
      const { resting, instances } = await report();
      expect([resting, instances.map(({ model }) => model)]).toEqual([['one'], ['two']]);
      expect((await worker.post(agentPaths.move, { model: 7 })).status).toBe(400);
    },
    limit_ms,
  );

  it('explains its memory: the parts and what is unexplained add up to what the kernel counts', async () => {
    const path = await tinyModel(worker.folder, 'tiny-llama');
    await worker.configure();
    await worker.load({ name: 'one', model_path: path });
    // Pages shared with processes that start and end count for more or less between two looks.
    const difference = async () => {
      const { memory } = await report();
      const explained = memory.parts.reduce((sum, { bytes }) => sum + bytes, 0);
      expect(explained + memory.unexplained_bytes).toBe(memory.pss_bytes);
      const rollup = readFileSync(`/proc/${worker.process.pid}/smaps_rollup`, 'utf8');
      const pss_bytes = 1024 * Number(/^Pss:\s+(\d+)/m.exec(rollup)![1]);
      return Math.abs(memory.pss_bytes / pss_bytes - 1);
    };
    await expect.poll(difference, { timeout: 10_000 }).toBeLessThan(0.05);
  });
});
