/** Device workers change the stages of a model while requests run; some of them are killed meanwhile. */
import { copyFileSync, mkdtempSync, renameSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, expect, onTestFinished, test } from 'vitest';
import { openModelFile } from '../../../agent/engine/model-file.ts';
import { frame_floats_max } from '../../../agent/pipeline/frame.ts';
import { type DeviceReport, deviceReportSchema } from '../../../spec/device-report.ts';
import { sharedDeviceViewSchema } from '../../../spec/device-view.ts';
import type { PoolReport } from '../../../spec/pool-report.ts';
import { agentPaths } from '../../../spec/wire.ts';
import { eventually } from '../../mesh/support.ts';
import { tinyModel, type WorkerHarness } from '../device-worker/support.ts';
import { eightLayers, layersOn, WorkerPipelines } from './worker-pipelines.ts';

const open: WorkerPipelines[] = [];
afterEach(async () => {
  for (const pipelines of open.splice(0)) await pipelines.close();
});

async function start(devices: string, step_ms_min: number): Promise<WorkerPipelines> {
  const pipelines = new WorkerPipelines(await eightLayers(), { step_ms_min });
  open.push(pipelines);
  await pipelines.start(devices);
  return pipelines;
}

/** Of two stages on two devices, which rests soon after its requests. */
async function startRestful(model_path: string): Promise<WorkerPipelines> {
  const configuration = { sharing: { keep_alive_ms: 300 } };
  const pipelines = new WorkerPipelines(model_path, { step_ms_min: 10, configuration });
  open.push(pipelines);
  await pipelines.start('ab');
  await pipelines.open(two);
  return pipelines;
}

function untilItRests({ coordinator }: WorkerPipelines): Promise<unknown> {
  return eventually(
    async () => (await deviceReport(coordinator)).resting.includes('m'),
    'the pipeline to rest',
  );
}

const requests = Array.from({ length: 8 }, (_, index) => ({
  prompt: `${index}: what becomes of a pipeline of ${index + 1} stages ${'and more '.repeat(5 * index)}`,
  max_tokens: 150,
  temperature: 0,
  ignore_eos: true,
}));

/** Texts of the answers, all of which end well. */
async function ask(pipelines: WorkerPipelines): Promise<string[]> {
  const { coordinator } = pipelines;
  const answers = await Promise.all(
    requests.map((request) => coordinator.post('/v1/completions', { model: 'm', ...request })),
  );
  return answers.map(({ status, text }) => {
    expect(status, text).toBe(200);
    return JSON.parse(text).choices[0].text;
  });
}

const one = layersOn('a', 8);
const two = layersOn('ab', 4, 4);
const uneven = layersOn('ab', 2, 6);
const four = layersOn('acbd', 2, 2, 2, 2);
const moved = layersOn('ac', 3, 5);

test('1, 2, 4, 2, 1 stages under 8 running requests, and two that are cut anew', {
  timeout: 240_000,
}, async () => {
  const pipelines = await start('abcd', 10);
  await pipelines.open(one);
  const expected = await ask(pipelines);
  const asked = ask(pipelines);
  await pipelines.coordinator.report('m', ({ running }) => running === requests.length);
  for (const to of [two, uneven, four, two, one]) {
    const { report, error } = await pipelines.refactor(to);
    expect(error).toBeUndefined();
    const { outcome } = report!;
    expect(outcome, JSON.stringify(outcome)).toMatchObject({ kind: 'refactored', incomplete: [] });
    expect(report!.bytes_moved).toBeGreaterThan(0);
  }
  expect(pipelines.coordinator.lines.filter(({ level }) => Number(level) >= 50)).toEqual([]);
  expect(await asked).toEqual(expected);
});

test('a worker that is killed while rows are copied to it, and one whose rows have come across', {
  timeout: 240_000,
}, async () => {
  const pipelines = await start('abc', 20);
  await pipelines.open(two);
  const expected = await ask(pipelines);
  const asked = ask(pipelines);
  await pipelines.coordinator.report('m', ({ running }) => running === requests.length);
  const first = pipelines.begin(moved);
  await pipelines.workers
    .get('c')!
    .logged(({ msg }) => msg === 'asked to prepare a stage of a layout to come', 1);
  pipelines.workers.get('c')!.process.kill('SIGKILL');
  pipelines.coordinator.send({ type: 'cancel_refactoring', name: 'm', because: 'the worker of c is gone' });
  expect((await pipelines.ended(first, moved)).report!.outcome.kind).toBe('kept');
  await pipelines.start('c');
  const second = await pipelines.refactor(moved);
  expect(second.report!.outcome.kind).toBe('refactored');
  // After the cut nothing of it is needed.
  pipelines.workers.get('b')!.process.kill('SIGKILL');
  expect(await asked).toEqual(expected);
});

test('the first device has no room for all of the model: that is said, and it serves on with what it has', {
  timeout: 120_000,
}, async () => {
  // Room for the keys and values of four layers, and of little more.
  const pipelines = new WorkerPipelines(await eightLayers(), {
    model: { kv_tokens: 24_576 },
    configuration: { pool_bytes: 64 * 2 ** 20 },
  });
  open.push(pipelines);
  await pipelines.start('ab');
  await pipelines.open(two);
  const expected = await ask(pipelines);
  const { report, error } = await pipelines.refactor(one);
  expect(error).toBeUndefined();
  expect(report!.outcome).toMatchObject({ kind: 'kept', because: expect.stringMatching(/^a: .*pool/) });
  expect(await ask(pipelines)).toEqual(expected);
});

test('a stage that was still on its way as its change was given up is given back', {
  timeout: 120_000,
}, async () => {
  const pipelines = await start('ab', 0);
  await pipelines.open(two);
  const expected = await ask(pipelines);
  const b = pipelines.workers.get('b')!;
  const before = await pool(b);
  // It hears of the change and of its end at once.
  b.process.kill('SIGSTOP');
  const change = pipelines.begin(uneven);
  pipelines.coordinator.send({ type: 'cancel_refactoring', name: 'm', because: 'the test says so' });
  expect((await pipelines.ended(change, uneven)).report!.outcome.kind).toBe('kept');
  b.send({ type: 'unprepare', name: 'm', refactoring: change });
  b.process.kill('SIGCONT');
  await b.logged(({ msg }) => msg === 'asked to give back the stage of a layout that does not come', 1);
  await eventually(async () => {
    const { kv_bytes, weights_bytes } = await pool(b);
    return kv_bytes === before.kv_bytes && weights_bytes === before.weights_bytes;
  }, 'the memory of what was prepared to be free');
  // Of what it is told late, or of another change, nothing comes.
  for (const refactoring of [change, change + 7]) b.send({ type: 'unprepare', name: 'm', refactoring });
  expect(await ask(pipelines)).toEqual(expected);
  const again = pipelines.begin(uneven);
  const { report } = await pipelines.ended(again, uneven);
  expect(report!.outcome.kind).toBe('refactored');
  // It serves by now.
  b.send({ type: 'unprepare', name: 'm', refactoring: again });
  expect(await ask(pipelines)).toEqual(expected);
});

test('a pipeline that has changed rests, and comes back in the layout that it has by then', {
  timeout: 120_000,
}, async () => {
  const pipelines = await startRestful(await eightLayers());
  const expected = await ask(pipelines);
  for (const to of [uneven, one]) {
    // Under its requests it does not rest.
    const asked = ask(pipelines);
    await pipelines.coordinator.report('m', ({ running }) => running === requests.length);
    const { report } = await pipelines.refactor(to);
    expect(report!.outcome.kind).toBe('refactored');
    expect(await asked).toEqual(expected);
    await untilItRests(pipelines);
    expect(await ask(pipelines)).toEqual(expected);
  }
});

test('a pipeline that rests comes back for a change, and rests again in the layout that it has then', {
  timeout: 120_000,
}, async () => {
  const pipelines = await startRestful(await eightLayers());
  const expected = await ask(pipelines);
  const { coordinator, workers } = pipelines;
  for (const [index, to] of [uneven, two].entries()) {
    await untilItRests(pipelines);
    // The other device has its stage of the layout to come before the pipeline is back.
    coordinator.process.kill('SIGSTOP');
    const change = pipelines.begin(to);
    await workers.get('b')!.logged(({ msg }) => msg === 'weights are there', 2 + index);
    coordinator.process.kill('SIGCONT');
    const { report, error } = await pipelines.ended(change, to);
    expect(error).toBeUndefined();
    expect(report!.outcome, JSON.stringify(report)).toMatchObject({ kind: 'refactored' });
  }
  await untilItRests(pipelines);
  expect((await pipelines.refactor(one)).report!.outcome.kind).toBe('refactored');
  await untilItRests(pipelines);
  expect(await ask(pipelines)).toEqual(expected);
});

test('a change of a pipeline that rests is cancelled before that is back, and ends with its model', {
  timeout: 120_000,
}, async () => {
  const pipelines = await startRestful(await eightLayers());
  const expected = await ask(pipelines);
  const { coordinator, workers } = pipelines;
  const b = workers.get('b')!;
  await untilItRests(pipelines);
  // It does not come back without its other stage.
  b.process.kill('SIGSTOP');
  const cancelled = pipelines.begin(uneven);
  coordinator.send({ type: 'cancel_refactoring', name: 'm', because: 'the test says so' });
  expect((await pipelines.ended(cancelled, uneven)).error).toMatchObject({
    code: 'E_REFACTOR_KEPT',
    because: ['the test says so'],
  });
  b.send({ type: 'unprepare', name: 'm', refactoring: cancelled });
  b.process.kill('SIGCONT');
  expect(await ask(pipelines)).toEqual(expected);
  await untilItRests(pipelines);
  b.process.kill('SIGSTOP');
  const unloaded = pipelines.begin(uneven);
  coordinator.send({ type: 'unload', name: 'm' });
  expect((await pipelines.ended(unloaded, uneven)).error).toMatchObject({
    code: 'E_REFACTOR_KEPT',
    because: ['it was unloaded'],
  });
  b.process.kill('SIGCONT');
});

test('a pipeline that rests and has no room to come back keeps its stages, and says why', {
  timeout: 120_000,
}, async () => {
  const pipelines = new WorkerPipelines(await eightLayers(), {
    step_ms_min: 10,
    model: { kv_tokens: 1024 },
    configuration: { pool_bytes: 8 * 2 ** 20 },
  });
  open.push(pipelines);
  await pipelines.start('ab');
  await pipelines.open(two);
  const expected = await ask(pipelines);
  const { coordinator } = pipelines;
  const model_path = await tinyModel(coordinator.folder, 'tiny-llama', 2);
  await coordinator.load({ name: 'other', model_path, context_tokens: 2048, kv_tokens: 2048 });
  expect((await deviceReport(coordinator)).resting).toEqual(['m']);
  const prompt = Array.from({ length: 1500 }, (_, at) => at % 200);
  const order = { model: 'other', prompt, max_tokens: 200, ignore_eos: true };
  const answer = coordinator.post('/v1/completions', order);
  await coordinator.report('other', ({ running }) => running === 1);
  const { error } = await pipelines.refactor(uneven);
  expect(error).toMatchObject({
    code: 'E_REFACTOR_KEPT',
    because: [expect.stringMatching(/^it rests, and cannot come back now: .*pool/)],
  });
  expect((await answer).status).toBe(200);
  // Nobody asks for the other one by now.
  expect((await pipelines.refactor(uneven)).report!.outcome.kind).toBe('refactored');
  expect(await ask(pipelines)).toEqual(expected);
});

test('a pipeline that comes back takes no KV that was promised to what runs beside it', {
  timeout: 120_000,
}, async () => {
  const pipelines = new WorkerPipelines(await eightLayers(), {
    step_ms_min: 10,
    configuration: { pool_bytes: 16 * 2 ** 20 },
  });
  open.push(pipelines);
  await pipelines.start('ab');
  await pipelines.open(two);
  const expected = await ask(pipelines);
  const { coordinator } = pipelines;
  const { model_path } = pipelines.model;
  await coordinator.load({ name: 'other', model_path, context_tokens: 1024, kv_tokens: 1024 });
  expect((await deviceReport(coordinator)).resting).toEqual(['m']);
  const order = { model: 'other', prompt: 'A long answer', max_tokens: 800, ignore_eos: true };
  const answer = coordinator.post('/v1/completions', order);
  await coordinator.report('other', ({ running }) => running === 1);
  const loads = (): number =>
    coordinator.lines.filter(({ msg, name }) => msg === 'weights are there' && name === 'm').length;
  const before = loads();
  // As yet the pool has room for all of it: the answer has taken little of what it needs.
  const { status, text } = await coordinator.post('/v1/completions', { model: 'm', ...requests[0] });
  expect(status, text).toBe(503);
  expect(JSON.parse(text).error.code).toBe('E_POOL_FULL');
  // It did not take it for a moment, either.
  expect(loads()).toBe(before);
  const { status: own, text: answered } = await answer;
  expect(own, answered).toBe(200);
  expect(JSON.parse(answered).usage.completion_tokens).toBe(800);
  expect((await deviceReport(coordinator)).scheduler.evicted).toBe(0);
  expect(await ask(pipelines)).toEqual(expected);
});

test('a pipeline whose stages change rests for nobody before that is over', {
  timeout: 120_000,
}, async () => {
  const pipelines = new WorkerPipelines(await eightLayers(), {
    step_ms_min: 10,
    model: { kv_tokens: 1024 },
    configuration: { pool_bytes: 12 * 2 ** 20, sharing: { keep_alive_ms: 300 } },
  });
  open.push(pipelines);
  await pipelines.start('ab');
  await pipelines.open(two);
  const expected = await ask(pipelines);
  const { coordinator } = pipelines;
  // It lasts until the other device hears of it.
  const change = pipelines.begin(uneven, 'b');
  // Its weights fit beside the pipeline, and not the KV that it needs at least.
  const other = { model_path: pipelines.model.model_path, context_tokens: 4096, kv_tokens: 4096 };
  await coordinator.load({ name: 'other', ...other });
  expect((await deviceReport(coordinator)).resting).toEqual([]);
  pipelines.tellLate('b');
  const { report, error } = await pipelines.ended(change, uneven);
  expect(error).toBeUndefined();
  expect(report!.outcome, JSON.stringify(report)).toMatchObject({ kind: 'refactored' });
  await untilItRests(pipelines);
  expect(await ask(pipelines)).toEqual(expected);
});

test('where the file of a pipeline that rests is gone, its change ends with that', {
  timeout: 120_000,
}, async () => {
  const folder = mkdtempSync(join(tmpdir(), 'hpcr-restful-'));
  onTestFinished(() => rmSync(folder, { recursive: true }));
  const model_path = join(folder, 'm.gguf');
  copyFileSync(await eightLayers(), model_path);
  const pipelines = await startRestful(model_path);
  await untilItRests(pipelines);
  renameSync(model_path, `${model_path}.gone`);
  const { error } = await pipelines.refactor(uneven);
  expect(error).toMatchObject({ code: 'E_MODEL_MISSING' });
});

test('a model that was a pipeline of the same name before is loaded whole, and gets no stages', {
  timeout: 120_000,
}, async () => {
  const pipelines = await start('ab', 0);
  await pipelines.open(one);
  const { coordinator } = pipelines;
  coordinator.send({ type: 'unload', name: 'm' });
  await coordinator.message((message) => message.type === 'model' && message.state === 'unloaded');
  coordinator.send({ type: 'load', model: pipelines.model });
  await coordinator.report('m', ({ state }) => state === 'serving');
  const { error } = await pipelines.refactor(two);
  expect(error).toMatchObject({
    code: 'E_REFACTOR_MODEL',
    because: ['it was loaded whole, and has no stages'],
  });
  const { status, text } = await coordinator.post('/v1/completions', { model: 'm', ...requests[0] });
  expect(status, text).toBe(200);
});

test('gateways and schedule are told of as many sequences as have room in a frame', {
  timeout: 120_000,
}, async () => {
  const path = await eightLayers();
  const pipelines = new WorkerPipelines(path, { model: { max_sequences: 100_000 } });
  open.push(pipelines);
  await pipelines.start('ab');
  await pipelines.open(one);
  const { n_embd, n_vocab } = openModelFile(path).model;
  const sequences_max = Math.floor((frame_floats_max - n_embd) / n_vocab);
  expect(sequences_max).toBeLessThan(100_000);
  const told = async (): Promise<number[]> => {
    const { max_sequences } = await pipelines.coordinator.report('m', () => true);
    const { instances } = await deviceReport(pipelines.coordinator);
    return [max_sequences, ...instances.map((instance) => instance.max_sequences)];
  };
  expect(await told()).toEqual([sequences_max, sequences_max]);
  expect((await pipelines.refactor(two)).report!.outcome.kind).toBe('refactored');
  expect(await told()).toEqual([sequences_max, sequences_max]);
});

test('what is promised of the pools of devices follows their stages', { timeout: 120_000 }, async () => {
  const pipelines = await start('ab', 0);
  await pipelines.open(two);
  const b = pipelines.workers.get('b')!;
  const before = { a: await promised(pipelines.coordinator), b: await promised(b) };
  const change = async (to: typeof two): Promise<number> => {
    expect((await pipelines.refactor(to)).report!.outcome.kind).toBe('refactored');
    return promised(pipelines.coordinator);
  };
  const smaller = await change(uneven);
  const layer_bytes = (before.a - smaller) / 2;
  expect(layer_bytes).toBeGreaterThan(2 ** 16);
  // What the first device has no more is promised of the other.
  expect((await promised(b)) - before.b).toBeGreaterThanOrEqual(2 * layer_bytes);
  expect(await change(two)).toBe(before.a);
  const untilPromised = (bytes: number): Promise<unknown> =>
    eventually(async () => (await promised(b)) === bytes, `${bytes} bytes to be promised of b`);
  await untilPromised(before.b);
  expect(await change(one)).toBeGreaterThanOrEqual(before.a + 4 * layer_bytes);
  await untilPromised(0);
  expect(await change(two)).toBe(before.a);
  await untilPromised(before.b);
});

/** To weights and KV: results of graphs come and go with what is computed. */
async function promised(worker: WorkerHarness): Promise<number> {
  const { text } = await worker.request('GET', agentPaths.sharing);
  const { budget_bytes } = sharedDeviceViewSchema.parse(JSON.parse(text));
  return budget_bytes - (await pool(worker)).scratch_bytes;
}

async function deviceReport(worker: WorkerHarness): Promise<DeviceReport> {
  const { text } = await worker.request('GET', '/hpcserve/v1/device');
  return deviceReportSchema.parse(JSON.parse(text));
}

async function pool(worker: WorkerHarness): Promise<PoolReport> {
  return (await deviceReport(worker)).memory.pool!;
}
