/** The models of a worker beside a real compute thread, which hears of what they are told later than it could. */
import { closeSync, copyFileSync, openSync, writeSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { ComputeThread } from '../../../agent/device-worker/compute/compute-thread.ts';
import type { ToCompute } from '../../../agent/device-worker/compute/messages.ts';
import type { FromWorker, NativeModel } from '../../../agent/device-worker/messages.ts';
import { WorkerMetrics } from '../../../agent/device-worker/metrics.ts';
import { Models, type SubmittedSequence } from '../../../agent/device-worker/models.ts';
import { defaultLimits } from '../../../agent/device-worker/worker-options.ts';
import { readGguf } from '../../../native/formats/gguf-reader.ts';
import { defaultSharingSettings } from '../../../solver/sharing/settings.ts';
import type { HpcserveError } from '../../../spec/errors/error.ts';
import { scratchFolder } from '../../mesh/support.ts';
import { engineOptions, model } from '../engine/support.ts';

/** Models whose compute thread does not hear of unloads, and of what is told behind them, before it may. */
class LateUnloads implements AsyncDisposable {
  readonly told: FromWorker[] = [];
  readonly models: Models;
  readonly #held: (() => void)[] = [];
  readonly #send = ComputeThread.prototype.send;
  #mayPass = false;
  #isTold: () => void = () => undefined;

  constructor() {
    const holds = (message: ToCompute, pass: () => void): void => {
      const waits = message.type === 'unload' || (message.type === 'load' && this.#held.length > 0);
      if (waits && !this.#mayPass) this.#held.push(pass);
      else pass();
    };
    const send = this.#send;
    ComputeThread.prototype.send = function (message) {
      holds(message, () => send.call(this, message));
    };
    this.models = new Models({
      threads: 1,
      pool_bytes: 256 * 2 ** 20,
      ggml_device: undefined,
      settings: defaultSharingSettings,
      step_ms_min: 0,
      profile_ms: 1,
      stall_ms: defaultLimits.stall_ms,
      warn: () => undefined,
      metrics: new WorkerMetrics('cpu'),
      failed: (error) => expect.fail(error.message),
      tell: (message) => {
        this.told.push(message);
        this.#isTold();
      },
    });
  }

  /** What was told of the model's states. */
  get states(): string[] {
    return this.told.flatMap((message) => (message.type === 'model' ? [message.state] : []));
  }

  /** Once it is told that the model is in this state. */
  async reaches(state: string): Promise<void> {
    while (!this.states.includes(state))
      await new Promise<void>((resolve) => {
        this.#isTold = resolve;
      });
  }

  /** Once the compute thread has or has not an engine of the model, and has said all that came of that. */
  async computes(is: boolean): Promise<void> {
    while ((await this.models.report()).instances.some(({ model: name }) => name === 'm') !== is);
  }

  pass(): void {
    this.#mayPass = true;
    for (const pass of this.#held.splice(0)) pass();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.models.stop();
    ComputeThread.prototype.send = this.#send;
  }
}

function config(model_path: string): NativeModel {
  const { threads: _, ...options } = engineOptions(model_path, { kv_tokens: 1024, prefill_chunk_tokens: 64 });
  return { name: 'm', aliases: [], ...options };
}

/** A copy of the model in which one token has no numbers. @returns its path, and the token */
function withBadToken(path: string, folder: string): { path: string; bad_token: number } {
  const copy = join(folder, 'bad.gguf');
  copyFileSync(path, copy);
  const embedding = readGguf(copy).tensors.find(({ name }) => name === 'token_embd.weight')!;
  const [width, n_vocab] = embedding.shape;
  const bad_token = n_vocab! - 1;
  const file = openSync(copy, 'r+');
  const at_bytes = embedding.offset_bytes + bad_token * width! * 4;
  writeSync(file, Buffer.from(new Float32Array([Number.NaN]).buffer), 0, 4, at_bytes);
  closeSync(file);
  return { path: copy, bad_token };
}

test('a model that comes anew does not fail of an iteration of the one before', async () => {
  await using scratch = await scratchFolder();
  const { path, bad_token } = withBadToken(await model('tiny-llama', 'F32'), scratch.path);
  await using late = new LateUnloads();
  const { models, told } = late;
  models.load(config(path));
  await late.reaches('serving');
  told.length = 0;
  const failures: HpcserveError[] = [];
  const sequence = {
    model: 'm',
    tokens: Int32Array.of(5, bad_token),
    n_prompt: 2,
    sampling: undefined,
    max_new_tokens: 0,
    stop_tokens: [],
  } as unknown as SubmittedSequence;
  const ignored = { admitted: () => undefined, output: () => undefined };
  models.submit(sequence, { ...ignored, failed: (error) => failures.push(error) });
  models.unload('m');
  models.load(config(path));
  expect(failures.map(({ code }) => code)).toEqual(['E_MODEL_NOT_READY']);
  await late.computes(false);
  expect(late.states).toEqual(['loading']);
  const { text } = models.all[0]!;
  expect(text).toBeDefined();
  late.pass();
  await late.reaches('serving');
  expect(late.states).toEqual(['loading', 'serving']);
  expect(models.find('m').text).toBe(text);
});

test('a model that comes anew does not serve because the one before was loaded', async () => {
  const path = await model('tiny-llama', 'Q8_0');
  await using late = new LateUnloads();
  const { models } = late;
  models.load(config(path));
  models.unload('m');
  models.load(config(path));
  await late.computes(true);
  expect(late.states).toEqual(['loading', 'loading']);
  expect(() => models.find('m')).toThrow('is loading');
  late.pass();
  await late.reaches('serving');
  expect(models.find('m').stats?.kv_tokens_total).toBe(1024);
});
