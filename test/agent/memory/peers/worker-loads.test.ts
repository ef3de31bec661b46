/** Loads as a device worker does them: beside answers of other models, and ended half-way in every way there is. */
import {
  copyFileSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  truncateSync,
} from 'node:fs';
import { type IncomingMessage, request } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { afterAll, afterEach, beforeEach, expect, test } from 'vitest';
import { openModelFile } from '../../../../agent/engine/model-file.ts';
import { operatorCount } from '../../../../agent/engine/operators.ts';
import { ContentHashCache, rangeOfKey } from '../../../../agent/memory/content-hashes.ts';
import { fileVersion } from '../../../../agent/memory/file-version.ts';
import { learnContents } from '../../../../agent/memory/learn-contents.ts';
import { heldSchema, rangePath } from '../../../../agent/memory/peers/peer-messages.ts';
import { type DeviceReport, deviceReportSchema } from '../../../../spec/device-report.ts';
import type { PoolReport } from '../../../../spec/pool-report.ts';
import { agentPaths } from '../../../../spec/wire.ts';
import { eventually } from '../../../mesh/support.ts';
import { WorkerHarness } from '../../device-worker/support.ts';
import { model } from '../../engine/support.ts';

const folder = mkdtempSync(join(tmpdir(), 'hpcserve-loads-'));
afterAll(() => rmSync(folder, { recursive: true }));

let worker: WorkerHarness;
beforeEach(async () => {
  worker = new WorkerHarness();
  await worker.configure();
});
afterEach(() => worker.close());

const body = { model: 'first', prompt: 'one two three', max_tokens: 100, temperature: 0, ignore_eos: true };

async function poolOf(): Promise<PoolReport> {
  const { status, text } = await worker.request('GET', '/hpcserve/v1/device');
  expect(status, text).toBe(200);
  const { pool } = deviceReportSchema.parse(JSON.parse(text)).memory;
  const { weights_bytes, reusable_bytes, kv_bytes, scratch_bytes, lost_bytes, free_bytes } = pool!;
  const sum = weights_bytes + reusable_bytes + kv_bytes + scratch_bytes + lost_bytes + free_bytes;
  expect(sum).toBe(pool!.pool_bytes);
  return pool!;
}

async function textOf(): Promise<string> {
  const { status, text } = await worker.post('/v1/completions', body);
  expect(status, text).toBe(200);
  return (JSON.parse(text) as { choices: { text: string }[] }).choices[0]!.text;
}

test('a model loads while another answers, and no token of that answer changes', async () => {
  await worker.load({ name: 'first', model_path: await model('tiny-llama', 'F16') });
  const alone = await textOf();
  const beside = textOf();
  await worker.load({ name: 'second', model_path: await model('small-llama', 'BF16') });
  expect(await beside).toBe(alone);
  expect((await poolOf()).models.map(({ model: name }) => name)).toEqual(['first', 'second']);
});

test('tensors stay when their model goes, and are there when it comes back', async () => {
  const path = await model('tiny-llama', 'F16');
  await worker.load({ name: 'first', model_path: path });
  const text = await textOf();
  const { weights_bytes } = await poolOf();
  worker.send({ type: 'unload', name: 'first' });
  await worker.message((message) => message.type === 'model' && message.state === 'unloaded');
  await worker.load({ name: 'other', model_path: await model('tiny-qwen2', 'F16') });
  expect((await poolOf()).reusable_bytes).toBe(weights_bytes);
  const before = await poolOf();
  void worker.load({ name: 'first', model_path: path });
  await worker.report('first', ({ state }) => state === 'serving');
  const after = await poolOf();
  expect(after.reusable_bytes).toBe(0);
  expect(after.weights_bytes).toBe(before.weights_bytes + weights_bytes);
  expect(await textOf()).toBe(text);
});

test('a file that is cut off while it is loaded fails that model alone, with the reason', async () => {
  await worker.load({ name: 'first', model_path: await model('tiny-llama', 'F16') });
  const alone = await textOf();
  const whole = await model('small-llama', 'F32');
  let failed = 0;
  /** Of models that were loaded before the cut came: they lie there when they are unloaded. */
  let whole_bytes = 0;
  // Loads take as long as they do: the cut comes before, within and perhaps behind them.
  for (const after_ms of [0, 10, 20, 40, 80]) {
    const path = join(folder, `cut-${after_ms}.gguf`);
    copyFileSync(whole, path);
    const beside = textOf();
    const name = `cut-${after_ms}`;
    const loaded = worker.load({ name, model_path: path }).then(
      () => undefined,
      (error: Error) => error,
    );
    await delay(after_ms);
    truncateSync(path, 2 ** 20);
    const error = await loaded;
    expect(await beside).toBe(alone);
    if (error === undefined) {
      worker.send({ type: 'unload', name });
      await worker.message(
        (message) => message.type === 'model' && message.name === name && message.state === 'unloaded',
      );
      whole_bytes = (await poolOf()).reusable_bytes;
      continue;
    }
    failed++;
    expect(error.message).toMatch(/"E_(POOL_LOAD|MODEL_CUT_OFF|NATIVE_\w+)"/);
    expect((await poolOf()).reusable_bytes).toBe(whole_bytes);
    rmSync(path);
  }
  expect(failed).toBeGreaterThan(0);
  expect(await textOf()).toBe(alone);
}, 60_000);

test('how far a load is, and how fast, is told while it runs', async () => {
  const path = await model('small-llama', 'F32');
  const reported = async () => {
    const { text } = await worker.request('GET', '/hpcserve/v1/device');
    return deviceReportSchema.parse(JSON.parse(text));
  };
  let seen: DeviceReport['loading'][number] | undefined;
  // On a busy machine a load may begin and end between two reports: then once more.
  for (let attempt = 0; attempt < 20 && !seen; attempt++) {
    if (attempt > 0) {
      await worker.close();
      worker = new WorkerHarness();
      await worker.configure();
    }
    let over = false;
    const loaded = worker.load({ name: 'first', model_path: path }).finally(() => {
      over = true;
    });
    while (!seen && !over) seen = (await reported()).loading.find(({ bytes_loaded }) => bytes_loaded > 0);
    await loaded;
  }
  expect(seen?.model).toBe('first');
  expect(seen!.bytes_loaded).toBeLessThan(seen!.bytes_total);
  expect(seen!.bytes_per_s).toBeGreaterThan(0);
  const told = await worker.message((message) => message.type === 'progress' && message.bytes_loaded > 0);
  if (told.type !== 'progress') throw new Error('no progress');
  expect(told.bytes_total).toBeGreaterThan(100e6);
  expect(told.bytes_total).toBe(seen!.bytes_total);
  expect(told.elapsed_ms).toBeGreaterThan(0);
  await worker.report('first', ({ state }) => state === 'serving');
  const after = await reported();
  expect(after.loading).toEqual([]);
  const loads = after.decisions.filter(({ kind }) => kind === 'load').map(({ because }) => because);
  expect(loads).toEqual([
    expect.stringMatching(
      /^0 MB were there, 11\d MB came in \d+ ms \(\d+ MB\/s\)(; past the page cache, which could not keep it)?; a thread: /,
    ),
  ]);
});

test('a worker that is killed in a load takes no token of another worker’s stream with it', async () => {
  // An answer that takes seconds, and a load that ends with a measurement of seconds: both are under way at the kill.
  await worker.close();
  worker = new WorkerHarness();
  await worker.configure({}, { step_ms_min: 15 });
  const other = new WorkerHarness();
  try {
    await other.configure({}, { step_ms_min: 3000 });
    // The second answer finds its prompt in the cache, and computes one row of it where the first computed all.
    const first = { name: 'first', model_path: await model('small-llama', 'Q4_0'), batch_invariant: true };
    await worker.load(first);
    const path = await model('small-llama', 'F32');
    const long = { ...body, max_tokens: 300 };
    const textOfEvent = ({ choices }: { choices: { text: string }[] }): string => choices[0]?.text ?? '';
    const alone = (await worker.stream('/v1/completions', long)).map(textOfEvent).join('');
    const beside = await worker.client.completions.create({ ...long, stream: true });
    let text = '';
    let finished = false;
    const streamed = (async () => {
      for await (const event of beside) text += textOfEvent(event);
      finished = true;
    })();
    await eventually(() => text !== '', 'the answer to have begun');
    let loaded = false;
    void other.load({ name: 'second', model_path: path }).then(
      () => {
        loaded = true;
      },
      () => undefined,
    );
    await other.message((message) => message.type === 'progress' && message.bytes_loaded > 0);
    other.process.kill('SIGKILL');
    expect([finished, loaded]).toEqual([false, false]);
    await other.exited;
    await streamed;
    expect(text).toBe(alone);
    await poolOf();
  } finally {
    await other.close();
  }
}, 60_000);

test('a model that is unloaded while it loads leaves nothing behind', async () => {
  await worker.load({ name: 'first', model_path: await model('tiny-llama', 'F16') });
  const before = await poolOf();
  void worker.load({ name: 'second', model_path: await model('small-llama', 'F32') }).catch(() => undefined);
  worker.send({ type: 'unload', name: 'second' });
  await worker.message(
    (message) => message.type === 'model' && message.name === 'second' && message.state === 'unloaded',
  );
  expect(await poolOf()).toMatchObject({ weights_bytes: before.weights_bytes, reusable_bytes: 0 });
});

test('a worker that is killed in a load leaves model file and next worker as they were', async () => {
  const path = await model('small-llama', 'BF16');
  void worker.load({ name: 'first', model_path: path }).catch(() => undefined);
  await worker.message((message) => message.type === 'progress');
  worker.process.kill('SIGKILL');
  await worker.exited;
  await worker.close();
  worker = new WorkerHarness();
  await worker.configure();
  await worker.load({ name: 'first', model_path: path });
  expect((await textOf()).length).toBeGreaterThan(0);
}, 120_000);

test('files that have tensors in common share them once they were hashed', async () => {
  await worker.close();
  worker = new WorkerHarness();
  await worker.configure({}, { cache_dir: join(folder, 'cache') });
  const path = await model('tiny-llama', 'F16');
  const copy = join(folder, 'copy.gguf');
  copyFileSync(path, copy);
  await worker.load({ name: 'first', model_path: path });
  const { weights_bytes } = await poolOf();
  // Hashed in the background: the worker names them from then on; then a copy that was never read brings nothing new.
  const hashes = new ContentHashCache(join(folder, 'cache', 'tensors'));
  await learnContents(hashes, copy);
  const contents = [...hashes.read(fileVersion(copy, statSync(copy, { bigint: true })))!.values()];
  await eventually(
    async () => {
      const { text } = await worker.post(agentPaths.tensors, { contents: contents.slice(0, 1) });
      return heldSchema.parse(JSON.parse(text)).held.length > 0;
    },
    'the tensors to be hashed',
    20_000,
  );
  await worker.load({ name: 'second', model_path: copy });
  expect((await poolOf()).weights_bytes).toBe(weights_bytes);
});

test('what is kept of the contents of a file is no need: one that cannot be read keeps no model away', async () => {
  await worker.close();
  worker = new WorkerHarness();
  const path = await model('tiny-llama', 'F16');
  const cache_dir = join(folder, 'unreadable-cache');
  // The name of the entry is that of any cache.
  const named = new ContentHashCache(join(folder, 'named'));
  await learnContents(named, path);
  const entries = readdirSync(named.folder);
  expect(entries).toHaveLength(1);
  mkdirSync(join(cache_dir, 'tensors', entries[0]!), { recursive: true });
  await worker.configure({}, { cache_dir });
  await worker.load({ name: 'first', model_path: path });
  await worker.load({ name: 'second', model_path: path });
  expect((await textOf()).length).toBeGreaterThan(0);
});

/** The body of an answer as it came. */
async function bytesOf(path: string): Promise<{ status: number; body: Buffer }> {
  const response = await new Promise<IncomingMessage>((resolve, reject) => {
    request({ socketPath: worker.socket, path }, resolve).once('error', reject).end();
  });
  return { status: response.statusCode!, body: Buffer.concat(await response.toArray()) };
}

test('tensors that are in the pool alone are given to peers, until they give way', async () => {
  const cache_dir = join(folder, 'pool-cache');
  const path = join(folder, 'forgotten.gguf');
  copyFileSync(await model('tiny-llama', 'F32'), path);
  await worker.load({ name: 'first', model_path: path });
  const { weights_bytes } = await poolOf();
  await worker.close();
  worker = new WorkerHarness();
  await worker.configure({}, { cache_dir, pool_bytes: 2.2 * weights_bytes });
  await worker.load({ name: 'first', model_path: path, kv_tokens: 64 });
  const hashes = new ContentHashCache(join(cache_dir, 'tensors'));
  await learnContents(hashes, path);
  const known = [...hashes.read(fileVersion(path, statSync(path, { bigint: true })))!];
  const held = async (): Promise<number[]> => {
    // One that nobody has: the thread that computes is asked, too.
    const contents = [...known.map(([, content]) => content), 'A'.repeat(43)];
    const { status, text } = await worker.post(agentPaths.tensors, { contents });
    expect(status, text).toBe(200);
    return heldSchema.parse(JSON.parse(text)).held;
  };
  await eventually(async () => (await held()).length === known.length, 'all to be named', 20_000);
  const file = readFileSync(path);
  // Neither a page cache nor a file has them any more.
  rmSync(path);
  expect(await held()).toHaveLength(known.length);
  for (const [key, content] of known) {
    const { offset_bytes, size_bytes } = rangeOfKey(key);
    const asked = rangePath(`${agentPaths.tensors}/`, { content, offset: 3, bytes: size_bytes - 3 });
    const { status, body: bytes } = await bytesOf(asked);
    expect(status).toBe(200);
    expect(Buffer.compare(bytes, file.subarray(offset_bytes + 3, offset_bytes + size_bytes))).toBe(0);
  }
  worker.send({ type: 'unload', name: 'first' });
  for (const seed of [2, 3])
    await worker.load({
      name: `m${seed}`,
      model_path: await model('tiny-llama', 'F32', seed),
      kv_tokens: 64,
    });
  const left = new Set(await held());
  expect(left.size).toBeLessThan(known.length);
  for (const [index, [, content]] of known.entries()) {
    const asked = rangePath(`${agentPaths.tensors}/`, { content, offset: 0, bytes: 4 });
    expect((await bytesOf(asked)).status).toBe(left.has(index) ? 200 : 404);
  }
});

test.each([
  ['a later stage, which serves nobody by itself', 1],
  ['a first stage that waits for the others', 0],
])('tensors of %s are given to peers, and still are once it goes', async (_, stage) => {
  const cache_dir = join(folder, `stage-cache-${stage}`);
  const path = join(folder, `stage-${stage}.gguf`);
  copyFileSync(await model('tiny-llama', 'F32'), path);
  const hashes = new ContentHashCache(join(cache_dir, 'tensors'));
  await learnContents(hashes, path);
  const known = [...hashes.read(fileVersion(path, statSync(path, { bigint: true })))!];
  await worker.close();
  worker = new WorkerHarness();
  await worker.configure({}, { cache_dir });
  const [cut, end] = [3, operatorCount(openModelFile(path).model.n_layer)];
  const [begin, until] = stage === 0 ? [0, cut] : [cut, end];
  const pipeline = {
    ...{ stage, stages: 2, begin, end: until, device: 'cpu 0', device_identity: 'here' },
    listen: join(folder, `${stage}.sock`),
    next: join(folder, `${1 - stage}.sock`),
  };
  void worker.load({ name: 'first', model_path: path, kv_tokens: 64, pipeline }).catch(() => undefined);
  const told = await worker.message(({ type }) => type === 'weights_loaded');
  if (told.type !== 'weights_loaded') throw new Error('nothing was told of its weights');
  expect(told.loaded).toMatchObject({ reused_bytes: 0, from_nodes: {} });
  const file = readFileSync(path);
  rmSync(path);
  const held = async (): Promise<number[]> => {
    const { text } = await worker.post(agentPaths.tensors, { contents: known.map(([, content]) => content) });
    return heldSchema.parse(JSON.parse(text)).held;
  };
  const here = (await held()).map((index) => known[index]!);
  const sizes = here.map(([key]) => rangeOfKey(key).size_bytes);
  expect(sizes.reduce((sum, size) => sum + size, 0)).toBe(told.loaded.loaded_bytes);
  expect(here.length).toBeLessThan(known.length);
  worker.send({ type: 'unload', name: 'first' });
  await worker.message((message) => message.type === 'model' && message.state === 'unloaded');
  expect(await held()).toHaveLength(here.length);
  for (const [key, content] of here) {
    const { offset_bytes, size_bytes } = rangeOfKey(key);
    const asked = rangePath(`${agentPaths.tensors}/`, { content, offset: 0, bytes: size_bytes });
    const { status, body: bytes } = await bytesOf(asked);
    expect(status).toBe(200);
    expect(Buffer.compare(bytes, file.subarray(offset_bytes, offset_bytes + size_bytes))).toBe(0);
  }
});

test.each([
  { latency_sensitivity: 1, stays: 'newer' },
  { latency_sensitivity: 1000, stays: 'older' },
])(
  'of two idle models the $stays one stays where the older has a latency_sensitivity of $latency_sensitivity',
  async ({ latency_sensitivity, stays }) => {
    const load = async (name: string, seed: number, more = {}): Promise<void> =>
      worker.load({ name, model_path: await model('tiny-llama', 'F16', seed), kv_tokens: 64, ...more });
    await load('measured', 1);
    const { weights_bytes } = await poolOf();
    await worker.close();
    worker = new WorkerHarness();
    // Room for the weights of two (and up to the next 2 MiB), and little beside them.
    await worker.configure({}, { pool_bytes: 2.2 * weights_bytes });
    const unload = async (name: string): Promise<void> => {
      worker.send({ type: 'unload', name });
      await worker.message(
        (message) => message.type === 'model' && message.name === name && message.state === 'unloaded',
      );
    };
    await load('older', 1, { latency_sensitivity });
    await unload('older');
    await load('newer', 2);
    await unload('newer');
    await load('third', 3);
    const resident = new Map((await poolOf()).resident_models.map(({ model: name, bytes }) => [name, bytes]));
    expect(resident.get('third')).toBe(weights_bytes);
    expect(resident.get(stays)).toBe(weights_bytes);
    expect(resident.get(stays === 'older' ? 'newer' : 'older') ?? 0).toBeLessThan(weights_bytes);
  },
);

test('what lies in the pool of each model is reported, whether it has an instance or rests', async () => {
  const names = ['one', 'two', 'three'];
  const load = async (index: number): Promise<void> =>
    worker.load({
      name: names[index]!,
      model_path: await model('tiny-llama', 'F16', index + 1),
      kv_tokens: 512,
      slo: { tpot_ms: 5000 },
    });
  await load(0);
  const alone = await worker.report('one', ({ weights }) => weights !== undefined);
  const { bytes } = alone.weights!;
  expect(alone.weights).toEqual({
    bytes,
    resident_bytes: bytes,
    load_bytes_per_s: expect.any(Number),
    resting: false,
    promised_share: expect.any(Number),
  });
  // Weights and KV of the one instance, of a pool that holds many.
  expect(alone.weights!.promised_share).toBeGreaterThan(0);
  expect(alone.weights!.promised_share).toBeLessThan(0.1);
  expect(bytes).toBe((await poolOf()).weights_bytes);
  await worker.close();
  worker = new WorkerHarness();
  await worker.configure({}, { pool_bytes: 2.2 * bytes });
  for (const index of names.keys()) await load(index);
  const rests = await worker.report('one', ({ weights }) => weights?.resting === true);
  expect(rests.state).toBe('serving');
  expect(rests.weights!.resident_bytes).toBeLessThan(bytes);
  const there = new Map((await poolOf()).resident_models.map((one) => [one.model, one.bytes]));
  expect(rests.weights!.resident_bytes).toBe(there.get('one') ?? 0);
  const answer = await worker.post('/v1/completions', { ...body, model: 'one', max_tokens: 5 });
  expect(answer.status, answer.text).toBe(200);
  const back = await worker.report('one', ({ weights }) => weights?.resting === false);
  expect(back.weights!.resident_bytes).toBe(bytes);
  expect((await worker.report('two', ({ weights }) => weights?.resting === true)).state).toBe('serving');
});

test('ten models come at once to a pool that holds three: each answers as it does alone', async () => {
  const names = Array.from({ length: 10 }, (_, index) => `m${index}`);
  const loadAll = async (): Promise<void> => {
    const paths = await Promise.all(names.map((_, index) => model('tiny-llama', 'F16', index + 1)));
    await Promise.all(
      names.map((name, index) =>
        worker.load(
          { name, model_path: paths[index]!, kv_tokens: 256, batch_invariant: true },
          // All ten of them, each with its measurement.
          60_000,
        ),
      ),
    );
  };
  const answers = async (): Promise<string[]> => {
    const texts: string[] = [];
    for (const name of names) {
      const { status, text } = await worker.post('/v1/completions', { ...body, model: name, max_tokens: 20 });
      expect(status, text).toBe(200);
      texts.push((JSON.parse(text) as { choices: { text: string }[] }).choices[0]!.text);
    }
    return texts;
  };
  await loadAll();
  const { weights_bytes } = await poolOf();
  const alone = await answers();
  expect(new Set(alone).size).toBe(names.length);
  await worker.close();
  worker = new WorkerHarness();
  await worker.configure({}, { pool_bytes: (3.5 * weights_bytes) / names.length });
  await loadAll();
  expect(await answers()).toEqual(alone);
  expect((await poolOf()).pool_bytes).toBeLessThan((4.5 * weights_bytes) / names.length);
}, 120_000);
