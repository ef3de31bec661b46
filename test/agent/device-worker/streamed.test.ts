/** Weights that stay in host memory, through a real device worker: tokens of resident ones, whatever comes between. */
import { copyFileSync, statSync, utimesSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { DeviceReport } from '../../../spec/device-report.ts';
import { agentPaths } from '../../../spec/wire.ts';
import { deepModel } from '../streaming/support.ts';
import { WorkerHarness } from './support.ts';

const mib = 2 ** 20;
/** Some two layers of the models below. */
const arena_bytes = 3.5 * mib;
const layers = 16;
const streamed = { weights: 'streamed', kernels: 'ggml' } as const;
const resident = { kernels: 'ggml' } as const;

const prompt = (seed: number, tokens = 150) =>
  Array.from({ length: tokens }, (_, at) => 5 + ((at * 7 + seed * 31) % 90));

interface Completion {
  text: string;
  tokens: string[];
  token_logprobs: number[];
}

/** @returns tokens with their probabilities, which tell two computations apart where tokens do not */
async function complete(worker: WorkerHarness, model: string, seed: number, more: object = {}) {
  const body = { model, prompt: prompt(seed), max_tokens: 24, temperature: 0, ignore_eos: true, logprobs: 0 };
  const { status, text } = await worker.post('/v1/completions', { ...body, ...more });
  expect(status, text).toBe(200);
  const [choice] = JSON.parse(text).choices;
  const { tokens, token_logprobs } = choice.logprobs;
  expect(tokens.length).toBe(24);
  return { text: choice.text, tokens, token_logprobs } as Completion;
}

async function poolOf(worker: WorkerHarness): Promise<NonNullable<DeviceReport['memory']['pool']>> {
  const { status, text } = await worker.request('GET', agentPaths.device);
  expect(status, text).toBe(200);
  return (JSON.parse(text) as DeviceReport).memory.pool!;
}

describe('models several times their arena', () => {
  const worker = new WorkerHarness();
  let paths: string[] = [];
  beforeAll(async () => {
    paths = await Promise.all([1, 2].map((seed) => deepModel('tiny-llama', 'BF16', seed, layers)));
    for (const path of paths) expect(statSync(path).size).toBeGreaterThan(4 * arena_bytes);
    await worker.configure({ profile_ms: 50 }, { arena_bytes });
    for (const [index, path] of paths.entries()) {
      await worker.load({ name: `streamed-${index}`, model_path: path, ...streamed });
      await worker.load({ name: `resident-${index}`, model_path: path, ...resident });
    }
  });
  afterAll(() => worker.close());

  it('answer with the very tokens of the resident ones', async () => {
    for (const seed of [1, 2])
      expect(await complete(worker, 'streamed-0', seed)).toEqual(await complete(worker, 'resident-0', seed));
    const drawn = { temperature: 0.8, seed: 7 };
    expect(await complete(worker, 'streamed-1', 3, drawn)).toEqual(
      await complete(worker, 'resident-1', 3, drawn),
    );
  });

  it('embed as the resident ones do', async () => {
    const embed = async (model: string) => {
      const { status, text } = await worker.post('/v1/embeddings', { model, input: prompt(4, 40) });
      expect(status, text).toBe(200);
      return JSON.parse(text).data[0].embedding;
    };
    expect(await embed('streamed-0')).toEqual(await embed('resident-0'));
  });

  it('take turns in one arena', async () => {
    const ask = (kind: string) =>
      Promise.all(
        [0, 1].map((index) => complete(worker, `${kind}-${index}`, 10 + index, { max_tokens: 24 })),
      );
    const expected = await ask('resident');
    expect(await ask('streamed')).toEqual(expected);
    const { arena_bytes: taken } = await poolOf(worker);
    expect(taken).toBe(arena_bytes);
  });

  it('a client that goes away in the middle of an answer leaves nothing behind', async () => {
    const expected = await complete(worker, 'resident-0', 20);
    const controller = new AbortController();
    const stream = await worker.client.completions.create(
      {
        model: 'streamed-0',
        prompt: prompt(21),
        max_tokens: 800,
        stream: true,
        ...({ ignore_eos: true } as object),
      },
      { signal: controller.signal },
    );
    let chunks = 0;
    for await (const _ of stream) if (++chunks > 3) break;
    controller.abort();
    await worker.report('streamed-0', ({ running, waiting }) => running === 0 && waiting === 0);
    expect(await complete(worker, 'streamed-0', 20)).toEqual(expected);
  });

  it('say through how much they stream, and give it back with the last of them', async () => {
    const told = await worker.message(
      (one) => one.type === 'model' && one.name === 'streamed-0' && one.state === 'serving',
    );
    expect(told).toMatchObject({ streamed: { arena_bytes, resident_bytes: 0 } });
    for (const name of ['streamed-0', 'streamed-1']) {
      worker.send({ type: 'unload', name });
      await worker.message((one) => one.type === 'model' && one.name === name && one.state === 'unloaded');
    }
    expect((await poolOf(worker)).arena_bytes).toBeUndefined();
    expect((await complete(worker, 'resident-0', 1)).tokens.length).toBe(24);
  });
});

describe('models of which some layers stay', () => {
  const worker = new WorkerHarness();
  const resident_bytes = 4 * mib;
  beforeAll(async () => {
    const paths = await Promise.all([1, 2].map((seed) => deepModel('tiny-llama', 'BF16', seed, layers)));
    await worker.configure({ profile_ms: 50 }, { arena_bytes, resident_bytes: 2 * resident_bytes });
    for (const [index, path] of paths.entries()) {
      await worker.load({ name: `streamed-${index}`, model_path: path, ...streamed, resident_bytes });
      await worker.load({ name: `resident-${index}`, model_path: path, ...resident });
    }
  });
  afterAll(() => worker.close());

  it('answer with the very tokens of the resident ones, in turn', async () => {
    for (const seed of [1, 2])
      for (const index of [0, 1])
        expect(await complete(worker, `streamed-${index}`, seed)).toEqual(
          await complete(worker, `resident-${index}`, seed),
        );
  });

  it('say what stays, what a step brings, and what the link gives', async () => {
    const load = await worker.report(
      'streamed-0',
      ({ streamed: told }) => told?.link_bytes_per_s_max !== undefined,
    );
    const { resident_bytes: stays, step_bytes, because } = load.streamed!;
    expect(load.streamed!.link_bytes_per_s_max).toBeGreaterThanOrEqual(load.streamed!.link_bytes_per_s!);
    // Of those that lie on the device as well: gateways count both in its time.
    expect(load.compute_ms).toBeGreaterThan(0);
    const lying = await worker.report('resident-0', ({ compute_ms }) => compute_ms !== undefined);
    expect(lying.compute_ms).toBeGreaterThan(0);
    expect(lying.streamed).toBeUndefined();
    expect(stays).toBeGreaterThan(resident_bytes / 2);
    expect(stays).toBeLessThanOrEqual(resident_bytes);
    expect(step_bytes).toBeGreaterThan(stays);
    expect(because?.join() ?? '').not.toMatch(/were to stay/);
    // Beside the ring, for both of them.
    expect((await poolOf(worker)).arena_bytes).toBe(arena_bytes + 2 * resident_bytes);
    const { text } = await worker.request('GET', agentPaths.device);
    const { instances } = JSON.parse(text) as DeviceReport;
    const reports = instances.map(({ model, streamed: told }) => [model, told?.resident_bytes]);
    expect(Object.fromEntries(reports)).toMatchObject({ 'streamed-0': stays });
    expect(instances.find(({ model }) => model === 'resident-0')!.streamed).toBeUndefined();
  });
});

describe('bad input', () => {
  it('an arena that a layer does not fit into is refused with both sizes, and others serve on', async () => {
    const worker = new WorkerHarness();
    try {
      const path = await deepModel('tiny-llama', 'BF16', 1, layers);
      await worker.configure({ profile_ms: 50 }, { arena_bytes: mib / 4 });
      await worker.load({ name: 'resident', model_path: path, ...resident });
      const refused = worker.load({ name: 'streamed', model_path: path, ...streamed });
      await expect(refused).rejects.toThrow(/E_NATIVE_MEMORY.*cannot be streamed through 262144 bytes/);
      await expect(refused).rejects.toThrow(/its largest layer has \d+ bytes/);
      expect((await poolOf(worker)).arena_bytes).toBeUndefined();
      expect((await complete(worker, 'resident', 1)).tokens.length).toBe(24);
    } finally {
      await worker.close();
    }
  });

  it('a pool without room for what was to stay streams it, says so, and gives the same tokens', async () => {
    const worker = new WorkerHarness();
    try {
      const path = await deepModel('tiny-llama', 'BF16', 1, layers);
      const more = { arena_bytes, resident_bytes: 64 * mib, pool_bytes: 34 * mib };
      await worker.configure({ profile_ms: 50 }, more);
      await worker.load({ name: 'streamed', model_path: path, ...streamed, resident_bytes: 16 * mib });
      await worker.load({ name: 'resident', model_path: path, ...resident });
      expect(await complete(worker, 'streamed', 1)).toEqual(await complete(worker, 'resident', 1));
      const { streamed: told } = await worker.report('streamed', ({ streamed: any }) => any !== undefined);
      expect(told!.because?.join()).toMatch(/were to stay, \d+ MiB come with every step/);
    } finally {
      await worker.close();
    }
  });

  it('a link that gives less than its plan assumes is told with both rates, and the tokens are the same', async () => {
    const worker = new WorkerHarness();
    try {
      const path = await deepModel('tiny-llama', 'BF16', 1, layers);
      await worker.configure({ profile_ms: 50 }, { arena_bytes });
      // More than any memory gives, of which a quarter is this model's.
      await worker.load({
        name: 'streamed',
        model_path: path,
        ...streamed,
        link_bytes_per_s: 4e15,
        link_share: 0.25,
      });
      await worker.load({ name: 'resident', model_path: path, ...resident });
      expect(await complete(worker, 'streamed', 1)).toEqual(await complete(worker, 'resident', 1));
      const { streamed: told } = await worker.report(
        'streamed',
        ({ streamed: any }) => any?.because !== undefined,
      );
      expect(told!.because!.join()).toMatch(
        /^the link gives [\d.]+ GB\/s of the 1000000\.0 GB\/s that the plan assumes/,
      );
    } finally {
      await worker.close();
    }
  });

  it('in a pool that is smaller than was planned fewer layers stay, of each model, and neighbours keep their room', async () => {
    const worker = new WorkerHarness();
    try {
      const paths = await Promise.all([1, 2].map((seed) => deepModel('tiny-llama', 'BF16', seed, layers)));
      const left_bytes = 8 * mib;
      const pool_bytes = 48 * mib;
      await worker.configure(
        { profile_ms: 50 },
        {
          arena_bytes,
          resident_bytes: 16 * mib,
          beside_bytes: pool_bytes - arena_bytes - left_bytes,
          pool_bytes,
        },
      );
      for (const [index, model_path] of paths.entries())
        await worker.load({ name: `streamed-${index}`, model_path, ...streamed, resident_bytes: 8 * mib });
      expect((await poolOf(worker)).arena_bytes).toBe(arena_bytes + left_bytes);
      await worker.load({ name: 'resident', model_path: paths[0]!, ...resident });
      expect(await complete(worker, 'streamed-0', 1)).toEqual(await complete(worker, 'resident', 1));
      for (const index of [0, 1]) {
        const load = await worker.report(`streamed-${index}`, ({ streamed: any }) => any !== undefined);
        const { resident_bytes, because } = load.streamed!;
        expect(resident_bytes).toBeGreaterThan(left_bytes / 4);
        expect(resident_bytes).toBeLessThanOrEqual(left_bytes / 2);
        expect(because?.join()).toMatch(/were to stay, 4 MiB come with every step/);
      }
    } finally {
      await worker.close();
    }
  });

  it('a pool without room for the arena says so', async () => {
    const worker = new WorkerHarness();
    try {
      const path = await deepModel('tiny-llama', 'BF16', 1, layers);
      await worker.configure({ profile_ms: 50 }, { arena_bytes: 64 * mib, pool_bytes: 32 * mib });
      const refused = worker.load({ name: 'streamed', model_path: path, ...streamed });
      await expect(refused).rejects.toThrow(/E_POOL_FULL.*no room for an arena of 64 MiB/);
    } finally {
      await worker.close();
    }
  });

  it('a file that changes while it is streamed ends its model with the reason; no token of it is wrong', async () => {
    const worker = new WorkerHarness();
    try {
      const path = await deepModel('tiny-llama', 'BF16', 1, layers);
      const own = join(worker.folder, 'own.gguf');
      copyFileSync(path, own);
      await worker.configure({ profile_ms: 50 }, { arena_bytes, step_ms_min: 5 });
      await worker.load({ name: 'changes', model_path: own, ...streamed });
      await worker.load({ name: 'stays', model_path: path, ...streamed });
      const body = { prompt: prompt(1), temperature: 0, ignore_eos: true, max_tokens: 800 };
      const stream = worker.post('/v1/completions', { ...body, model: 'changes', stream: true });
      await worker.report('changes', ({ running }) => running > 0);
      utimesSync(own, 1, 1);
      const failed = await worker.message(
        (one) => one.type === 'model' && one.name === 'changes' && one.state === 'failed',
      );
      expect(failed).toMatchObject({ error: { code: 'E_POOL_LOAD', what: expect.stringContaining(own) } });
      const events = (await stream).text.split('\n\n').filter((event) => event.startsWith('data: {'));
      const parsed = events.map((event) => JSON.parse(event.slice('data: '.length)));
      expect(parsed.some(({ error }) => error !== undefined)).toBe(true);
      const text = parsed.map(({ choices }) => choices?.[0]?.text ?? '').join('');
      // The other has the same weights, and goes on.
      const whole = await worker.post('/v1/completions', { ...body, model: 'stays' });
      expect(whole.status, whole.text).toBe(200);
      expect(JSON.parse(whole.text).choices[0].text.startsWith(text)).toBe(true);
    } finally {
      await worker.close();
    }
  });
});
