/** Stages in processes of their own: real device workers, a ring of sockets, and the loss of one of them. */
import { copyFileSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { createConnection, createServer, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, expect, test } from 'vitest';
import { openModelFile } from '../../../agent/engine/model-file.ts';
import { enumerateOperators } from '../../../agent/engine/operators.ts';
import { encodeJsonFrame, frameKinds } from '../../../agent/pipeline/frame.ts';
import { FrameAssembler } from '../../../agent/pipeline/frame-assembler.ts';
import { congestedStages } from '../../../solver/granularity/congested-stages.ts';
import { WorkerHarness } from '../device-worker/support.ts';
import { model } from '../engine/support.ts';
import { FileOpens } from './file-opens.ts';
import { ofProtocol } from './support.ts';

const open: (() => Promise<void>)[] = [];
afterEach(async () => {
  for (const close of open.splice(0).reverse()) await close();
});

interface Pipeline {
  workers: WorkerHarness[];
  /** Starts the worker of a stage, anew where there was one. */
  start(stage: number): Promise<void>;
  /** The model's name, served by the first worker. */
  name: string;
  /** Where a stage of it listens. */
  socket(stage: number): string;
}

interface PipelineOptions {
  names?: string[];
  /** By model: the stage of each device. */
  orders?: ((device: number) => number)[];
  /** Of emulated devices, by stage. */
  steps_ms?: readonly number[];
  /** Devices that are not started. */
  absent?: readonly number[];
  /** What it computes: a preset, and so many tokens at once. */
  preset?: string;
  chunk_tokens?: number;
  /** Where a stage reaches the one behind it; absent: where that listens. */
  ways?: Readonly<Record<number, (listens: string) => string>>;
  /** The first device has a copy of the file of its own, which is watched from before it starts. */
  watchFirst?: (opens: FileOpens) => void;
}

async function startPipeline(
  cuts: readonly number[],
  {
    names = ['m'],
    orders = [(stage) => stage],
    steps_ms = [],
    absent = [],
    preset = 'tiny-llama',
    chunk_tokens = 64,
    ways = {},
    watchFirst,
  }: PipelineOptions = {},
): Promise<Pipeline> {
  const folder = mkdtempSync(join(tmpdir(), 'hpcp-'));
  open.push(async () => rmSync(folder, { recursive: true, force: true }));
  const path = await model(preset, 'Q8_0');
  let first_path = path;
  if (watchFirst) {
    first_path = join(folder, 'first.gguf');
    copyFileSync(path, first_path);
    const opens = new FileOpens(first_path);
    open.push(async () => opens.close());
    watchFirst(opens);
  }
  const end = enumerateOperators(openModelFile(path).model.n_layer).length;
  const bounds = [0, ...cuts, end];
  const stages = bounds.length - 1;
  const workers: WorkerHarness[] = [];
  const socket = (name: string, stage: number): string => join(folder, `${name}-${stage % stages}.sock`);
  const start = async (device: number): Promise<void> => {
    const worker = new WorkerHarness();
    workers[device] = worker;
    open.push(() => worker.close());
    await worker.configure({}, { step_ms_min: steps_ms[device] ?? 0 });
    names.forEach((name, index) => {
      const stage = orders[index]!(device);
      worker.send({
        type: 'load',
        model: {
          name,
          aliases: [],
          model_path: device === 0 ? first_path : path,
          context_tokens: 512 + chunk_tokens,
          max_sequences: 8,
          prefill_chunk_tokens: chunk_tokens,
          kv_tokens: 2048,
          kv_type: 'f16',
          batch_invariant: true,
          pipeline: {
            stage,
            stages,
            begin: bounds[stage]!,
            end: bounds[stage + 1]!,
            listen: socket(name, stage),
            next: (ways[stage] ?? ((listens) => listens))(socket(name, stage + 1)),
            device: `device ${device}`,
            device_identity: `device ${device}`,
          },
        },
      });
    });
  };
  const devices = bounds.slice(1).map((_, device) => device);
  await Promise.all(devices.filter((device) => !absent.includes(device)).map(start));
  return { workers, start, name: names[0]!, socket: (stage) => socket(names[0]!, stage) };
}

async function serves(worker: WorkerHarness, name: string): Promise<void> {
  const ask = async (): Promise<number> =>
    (await worker.post('/v1/completions', { model: name, prompt: 'a', max_tokens: 1 })).status;
  await expect.poll(ask, { timeout: 20_000, interval: 50 }).toBe(200);
}

const asked = {
  prompt: 'The pipeline has two stages and ',
  max_tokens: 40,
  temperature: 0,
  ignore_eos: true,
};

async function alone(preset = 'tiny-llama', more: object = asked): Promise<string> {
  const worker = new WorkerHarness();
  open.push(() => worker.close());
  await worker.configure();
  await worker.load({
    name: 'm',
    model_path: await model(preset, 'Q8_0'),
    context_tokens: 2048,
    kv_tokens: 2048,
    batch_invariant: true,
  });
  return JSON.parse((await worker.post('/v1/completions', { model: 'm', ...more })).text).choices[0].text;
}

/** Of the memories of frames that a process has mapped, what was written or read of them, bytes. */
function sharedFrames_bytes({ process: { pid } }: WorkerHarness): number {
  const mappings = readFileSync(`/proc/${pid}/smaps`, 'utf8').split(/^(?=[0-9a-f]+-[0-9a-f]+ )/m);
  const own = mappings.filter((mapping) => mapping.includes('hpcserve-frames'));
  return own.reduce((sum, mapping) => sum + 1024 * Number(/^Rss: +(\d+) kB$/m.exec(mapping)![1]), 0);
}

test('a long prompt goes from stage to stage by memory that their processes share', async () => {
  // 700 rows of 512 numbers between two stages.
  const prompt = Array.from({ length: 700 }, (_, index) => 300 + ((37 * index) % 7000));
  const long = { ...asked, prompt, max_tokens: 12 };
  const expected = await alone('small-llama', long);
  const { workers, name } = await startPipeline([5, 11], { preset: 'small-llama', chunk_tokens: 1024 });
  await serves(workers[0]!, name);
  const before = workers.map(sharedFrames_bytes);
  const { status, text } = await workers[0]!.post('/v1/completions', { model: name, ...long });
  expect(status, text).toBe(200);
  expect(JSON.parse(text).choices[0].text).toBe(expected);
  const bytes = workers.map((worker, stage) => sharedFrames_bytes(worker) - before[stage]!);
  // The first sends, the second takes and sends, the last takes; what comes back is a token.
  const [first, second, last] = bytes as [number, number, number];
  const frame_bytes = 700 * 512 * 4;
  expect(first).toBeGreaterThanOrEqual(frame_bytes);
  expect(second).toBeGreaterThanOrEqual(2 * frame_bytes);
  expect(last).toBeGreaterThanOrEqual(frame_bytes);
});

test('answers are those of one process, and a stage that dies and comes back is noticed at once', async () => {
  const expected = await alone();
  const { workers, start, name } = await startPipeline([2, 4]);
  await serves(workers[0]!, name);
  const answers = await Promise.all(
    Array.from({ length: 5 }, () => workers[0]!.post('/v1/completions', { model: name, ...asked })),
  );
  for (const { status, text } of answers) {
    expect(status).toBe(200);
    expect(JSON.parse(text).choices[0].text).toBe(expected);
  }
  // In the middle of an answer.
  const broken = workers[0]!.post('/v1/completions', {
    model: name,
    ...asked,
    max_tokens: 450,
    stream: true,
  });
  await workers[0]!.report(name, ({ running }) => running > 0);
  const killed_ms = performance.now();
  workers[1]!.process.kill('SIGKILL');
  const { text } = await broken;
  expect(performance.now() - killed_ms).toBeLessThan(3000);
  expect(text).toContain('E_STAGE_LOST');
  await start(1);
  await serves(workers[0]!, name);
  const again = await workers[0]!.post('/v1/completions', { model: name, ...asked });
  expect(JSON.parse(again.text).choices[0].text).toBe(expected);
});

test('two pipelines whose coordinators are on each other’s devices do not wait for each other', async () => {
  const { workers } = await startPipeline([3], {
    names: ['m', 'w'],
    orders: [(device) => device, (device) => 1 - device],
  });
  await serves(workers[0]!, 'm');
  await serves(workers[1]!, 'w');
  const answers = await Promise.all(
    Array.from({ length: 6 }, (_, index) =>
      workers[index % 2]!.post('/v1/completions', { model: ['m', 'w'][index % 2], ...asked }),
    ),
  );
  const texts = answers.map(({ text }) => JSON.parse(text).choices[0].text);
  expect(new Set(texts).size).toBe(1);
});

test('a stage on a slow device is the one before which batches lie, as its coordinator reports', async () => {
  const { workers, name } = await startPipeline([2, 4], { steps_ms: [0, 0, 60] });
  await serves(workers[0]!, name);
  const answers = Array.from({ length: 8 }, () =>
    workers[0]!.post('/v1/completions', { model: name, ...asked }),
  );
  // Of three batches one is computed there, and two lie before it nearly always.
  const { stages } = await workers[0]!.report(name, ({ stages: told }) => (told?.[2]?.waiting ?? 0) > 1.2);
  const queues = stages!.map(({ waiting = 0, computed_us }) => ({ waiting, stage_s: computed_us / 1e6 }));
  expect(queues[0]!.waiting).toBeLessThan(0.5);
  expect(queues[1]!.waiting).toBeLessThan(0.5);
  expect(congestedStages(queues).map(({ stage }) => stage)).toEqual([2]);
  expect(new Set((await Promise.all(answers)).map(({ status }) => status))).toEqual(new Set([200]));
});

test.each([0, 1])('stage %i beside one of another version has failed, and says so', async (stage) => {
  const { workers, socket } = await startPipeline([3], { absent: [1 - stage] });
  const other = createServer((connection) => {
    connection.on('error', () => connection.destroy());
    connection.write(ofProtocol(99, encodeJsonFrame({ kind: 'alive', epoch: 0, number: 0 }, null)));
  });
  open.push(async () => void other.close());
  other.listen(socket(1 - stage));
  const told = await workers[stage]!.message(
    (message) => message.type === 'model' && message.state === 'failed',
  );
  expect(told).toMatchObject({ name: 'm', error: { code: 'E_STAGE_MISMATCH' } });
});

test('a stage that is lost while the model is measured is waited for, as at any other time', async () => {
  // Measuring takes many of these.
  const steps_ms = [0, 200];
  let isMeasured = (): void => undefined;
  const measured = new Promise<void>((resolve) => {
    isMeasured = resolve;
  });
  const { workers, start, name } = await startPipeline([3], {
    steps_ms,
    ways: { 0: (listens) => watched(listens, () => isMeasured()) },
  });
  const [coordinator, second] = workers;
  await measured;
  second!.process.kill('SIGKILL');
  await coordinator!.logged(({ msg }) => String(msg).includes('waits for its stages'), 1);
  await start(1);
  await serves(coordinator!, name);
  const answer = await coordinator!.post('/v1/completions', { model: name, ...asked, max_tokens: 4 });
  expect(answer.status).toBe(200);
});

test('a first stage that waits for a later one does not open its file again', async () => {
  let opens: FileOpens | undefined;
  const { workers, start, name } = await startPipeline([3], { watchFirst: (watched) => (opens = watched) });
  const [coordinator, second] = workers;
  await serves(coordinator!, name);
  expect(opens!.take()).toBeGreaterThan(0);
  const before = await coordinator!.post('/v1/completions', { model: name, ...asked });
  second!.process.kill('SIGKILL');
  await coordinator!.logged(({ msg }) => String(msg).includes('waits for its stages'), 1);
  await start(1);
  await serves(coordinator!, name);
  const again = await coordinator!.post('/v1/completions', { model: name, ...asked });
  expect(JSON.parse(again.text).choices[0].text).toBe(JSON.parse(before.text).choices[0].text);
  expect(opens!.take()).toBe(0);
});

/** A way to a stage. @param onBatch runs with each batch that passes. @returns where it is reached */
function watched(listens: string, onBatch: () => void): string {
  const path = `${listens}.way`;
  const sockets = new Set<Socket>();
  const server = createServer((from) => {
    const to = createConnection(listens);
    const assembler = new FrameAssembler();
    from.on('data', (chunk) => assembler.take(chunk, (frame) => isBatch(frame) && onBatch()));
    for (const [end, other] of [
      [from, to],
      [to, from],
    ] as const) {
      sockets.add(end);
      end.on('error', () => end.destroy());
      end.once('close', () => other.destroy());
      end.pipe(other);
    }
  });
  server.listen(path);
  open.push(async () => {
    for (const socket of sockets) socket.destroy();
    server.close();
  });
  return path;
}

const isBatch = (frame: Uint8Array): boolean => Buffer.from(frame).readUInt16LE(6) === frameKinds.batch;
