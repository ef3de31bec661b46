/** Kernels that compute wrongly, and weights that are no numbers: real workers, which find out themselves. */
import { execFileSync } from 'node:child_process';
import { closeSync, copyFileSync, mkdtempSync, openSync, rmSync, writeSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, describe, expect, it } from 'vitest';
import { readGguf } from '../../../native/formats/gguf-reader.ts';
import { folderWithOneCpu, lackingForWrongKernels, wrongKernelCpu } from '../engine/cpu-library-folders.ts';
import { model } from '../engine/support.ts';
import { WorkerHarness } from './support.ts';

const ask = { model: 'm', prompt: 'Ships float because', max_tokens: 24, temperature: 0 };
const source = fileURLToPath(new URL('wrong-kernels.c', import.meta.url));
const lacking = lackingForWrongKernels();
const needs = lacking && ` [skipped: needs ${lacking}]`;

const scratch = mkdtempSync(join(tmpdir(), 'hpcw-wrong-'));
const workers: WorkerHarness[] = [];
afterAll(async () => {
  await Promise.all(workers.map((worker) => worker.close()));
  rmSync(scratch, { recursive: true });
});

function start(environment?: NodeJS.ProcessEnv): WorkerHarness {
  const worker = new WorkerHarness(environment);
  workers.push(worker);
  return worker;
}

async function leftOut(worker: WorkerHarness): Promise<string[]> {
  return JSON.parse((await worker.request('GET', '/hpcserve/v1/device')).text).device.left_out;
}

/** A copy of a model with bytes of one tensor overwritten. */
function damaged(path: string, name: string, at_bytes: number, bytes: Uint8Array): string {
  const copy = join(scratch, `${name}.gguf`);
  copyFileSync(path, copy);
  const tensor = readGguf(copy).tensors.find((candidate) => candidate.name === name)!;
  const file = openSync(copy, 'r+');
  writeSync(file, bytes, 0, bytes.length, tensor.offset_bytes + at_bytes);
  closeSync(file);
  return copy;
}

describe.skipIf(lacking !== '')(`a kernel that is wrong on this CPU${needs}`, () => {
  it('is left out, said, and answered without', async () => {
    const library = join(scratch, 'wrong.so');
    execFileSync('cc', ['-shared', '-fPIC', '-O2', '-o', library, source]);
    const library_dir = folderWithOneCpu(join(scratch, 'libraries'), wrongKernelCpu);
    const path = await model('tiny-llama', 'Q4_0');
    const right = start({ XDG_CACHE_HOME: join(scratch, 'right') });
    const wrong = start({ XDG_CACHE_HOME: join(scratch, 'wrong'), LD_PRELOAD: library });
    for (const worker of [right, wrong]) {
      await worker.configure({}, { library_dir });
      // Others than ours, so that the library's own are tried.
      await worker.load({ name: 'm', model_path: path, kernels: 'ggml' });
    }
    const sentence = expect.stringMatching(
      /^the CPU_REPACK kernel for Q4_0 matrices of \d+ columns is wrong on this CPU: other kernels/,
    );
    expect(await wrong.message(({ type }) => type === 'kernels_left_out')).toMatchObject({
      errors: expect.arrayContaining([expect.objectContaining({ code: 'E_NATIVE_KERNEL', what: sentence })]),
    });
    await wrong.logged(({ level, msg }) => level === 40 && /CPU_REPACK kernel for Q4_0/.test(String(msg)), 1);
    expect(await leftOut(wrong)).toContainEqual(sentence);
    expect(await leftOut(right)).toEqual([]);
    for (const { client } of [right, wrong])
      expect((await client.completions.create(ask)).usage?.completion_tokens).toBe(24);
  });
});

describe('a model that computes no numbers', () => {
  const notANumber = Buffer.from(new Float32Array([Number.NaN]).buffer);

  it('never serves where that is always so, and leaves its neighbour alone', async () => {
    const worker = start();
    const whole = await model('tiny-llama', 'Q8_0');
    await worker.configure();
    await worker.load({ name: 'whole', model_path: whole });
    const path = damaged(whole, 'output_norm.weight', 0, notANumber);
    const error = await worker.load({ name: 'm', model_path: path }).then(
      () => 'it serves',
      (thrown: Error) => thrown.message,
    );
    expect(error).toMatch(/E_ENGINE_NUMBERS.*no numbers.*instruction sets/);
    const answer = await worker.client.completions.create({ ...ask, model: 'whole' });
    expect(answer.usage?.completion_tokens).toBe(24);
  });

  it('takes itself out of service where one request shows it', async () => {
    const worker = start();
    const f32 = await model('tiny-llama', 'F32');
    const [width, n_vocab] = readGguf(f32).tensors.find(({ name }) => name === 'token_embd.weight')!.shape;
    const bad_token = n_vocab! - 1;
    const path = damaged(f32, 'token_embd.weight', bad_token * width! * 4, notANumber);
    await worker.configure();
    await worker.load({ name: 'm', model_path: path });
    expect((await worker.client.completions.create(ask)).usage?.completion_tokens).toBe(24);
    const refused = worker.client.completions.create({ ...ask, prompt: [5, bad_token] });
    await expect(refused).rejects.toMatchObject({ status: 503, code: 'E_ENGINE_NUMBERS' });
    expect(
      await worker.message((message) => message.type === 'model' && message.state === 'failed'),
    ).toMatchObject({
      error: { code: 'E_ENGINE_NUMBERS' },
    });
    await expect(worker.client.completions.create(ask)).rejects.toMatchObject({ status: 503 });
  });
});
