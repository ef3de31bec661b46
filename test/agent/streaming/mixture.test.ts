/**
 * Mixtures of which only the experts that are needed cross the link: the bits of resident ones, whatever was guessed,
 * brought, and given up for others.
 */
import { copyFileSync, mkdtempSync, rmSync, utimesSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, describe, expect, test, vi } from 'vitest';
import type { NativeEngine } from '../../../agent/engine/native-engine.ts';
import type { TensorLoad } from '../../../agent/memory/load/pieces.ts';
import { ExpertStream } from '../../../agent/streaming/expert-stream.ts';
import { openStreamingEngine } from '../../../agent/streaming/open-streaming.ts';
import type { StreamingArena } from '../../../agent/streaming/streaming-arena.ts';
import { GgmlType } from '../../../native/ggml.ts';
import { packedProducts } from '../../../native/packed-products.ts';
import { generate, prompt, stepAlone } from '../engine/support.ts';
import { testBackend } from '../engine/test-backend.ts';
import { codeOf, mib } from '../memory/support.ts';
import {
  ask,
  closeAll,
  deepModel,
  expectSame,
  hangOnCancel,
  newArena,
  oddMixture,
  options,
  resident,
  streamed,
  wideMixture,
} from './support.ts';

const folder = mkdtempSync(join(tmpdir(), 'hpcserve-mixture-'));
afterEach(async () => {
  vi.restoreAllMocks();
  await closeAll();
});
afterAll(() => rmSync(folder, { recursive: true }));

/** Counts what an arena's loader is told to bring. */
function countBytes(arena: StreamingArena): { bytes: number; experts: number } {
  const counted = { bytes: 0, experts: 0 };
  const begin = arena.loader.begin.bind(arena.loader);
  arena.loader.begin = (file, tensors: readonly TensorLoad[], ...more) => {
    for (const { name, parts } of tensors) {
      const bytes = parts.reduce((sum, { size_bytes }) => sum + size_bytes, 0);
      counted.bytes += bytes;
      if (name.includes('_exps')) counted.experts += bytes;
    }
    return begin(file, tensors, ...more);
  };
  return counted;
}

/** Rows enough that each expert of each layer is chosen by one of them: what is guessed depends on the machine. */
function needAllExperts(engine: NativeEngine): void {
  const every_row = { max_new_tokens: 0, stop_tokens: new Set<number>() };
  for (const id of [7, 8]) engine.add({ id, prompt_tokens: prompt(400, 1000, id), ...every_row });
  while (engine.busy) stepAlone(engine);
}

/** Bytes of all experts of the wide mixture in Q8_0: six layers of 32, three matrices of 256 by 256. */
const experts_bytes = 6 * 32 * 3 * 256 * ((256 / 32) * 34);

describe.each([
  ['tiny-qwen3moe', 'Q8_0', 6.5],
  ['tiny-qwen3moe', 'BF16', 11],
  ['tiny-mixtral', 'Q4_0', 2.5],
  ['wide', 'Q8_0', 16],
] as const)('%s in %s', (preset, quantization, ring_mib) => {
  const path = (): Promise<string> =>
    preset === 'wide' ? wideMixture(quantization) : deepModel(preset, quantization);

  test('gives the bits that it gives when it is resident', async () => {
    const model = await path();
    const { engine, executor } = streamed(model, newArena({ ring_bytes: ring_mib * mib }));
    expectSame(ask(engine), ask(resident(model)));
    const { experts_at_hand, resident_bytes } = executor.streamed;
    expect(experts_at_hand).toBeGreaterThan(0);
    expect(experts_at_hand).toBeLessThan(1);
    expect(resident_bytes).toBe(0);
  });

  test('gives them where batches do not change a row', async () => {
    const model = await path();
    const more = { batch_invariant: true };
    const { engine } = streamed(model, newArena({ ring_bytes: ring_mib * mib }), more);
    expectSame(ask(engine), ask(resident(model, more)));
  });
});

test('all rows leave the last layer where they are asked for', async () => {
  const path = await wideMixture('Q8_0');
  const outputs = [streamed(path, newArena({ ring_bytes: 16 * mib })).engine, resident(path)].map(
    (engine) => {
      engine.add({ id: 1, prompt_tokens: prompt(40, 1000, 2), max_new_tokens: 0, stop_tokens: new Set() });
      engine.add({
        id: 2,
        prompt_tokens: prompt(30, 1000, 3),
        sampler: { sample: (logits) => ({ token: logits.indexOf(Math.max(...logits)) }) },
        max_new_tokens: 3,
        prompt_logprobs: 2,
        stop_tokens: new Set(),
      });
      const told: unknown[] = [];
      while (engine.busy)
        for (const { id, embedding, prompt_logprobs, token } of stepAlone(engine).outputs)
          told.push([id, embedding && [...embedding], prompt_logprobs, token?.token]);
      return told;
    },
  );
  expect(outputs[0]!.length).toBeGreaterThan(3);
  expect(outputs[0]).toEqual(outputs[1]);
});

describe('what crosses the link', () => {
  test('is a small part of the experts while a sequence decodes', async () => {
    const path = await wideMixture('Q8_0');
    const arena = newArena({ ring_bytes: 16 * mib });
    const counted = countBytes(arena);
    const { engine, executor } = streamed(path, arena);
    const question = { prompt: prompt(4, 1000, 5), max_new_tokens: 41 };
    const [own] = generate(engine, [{ ...question }]);
    const steps = own!.tokens.length;
    expect(steps).toBe(41);
    // Each of the 41 steps brought all experts of six layers before they were cut at routers.
    expect(counted.experts).toBeLessThan(0.2 * steps * experts_bytes);
    // Two experts of each layer, and as many on a guess, are a sixteenth each.
    expect(counted.experts).toBeGreaterThan((steps / 64) * experts_bytes);
    // What was given up is counted here and not there.
    const { streamed_bytes } = executor.statistics;
    expect(streamed_bytes).toBeLessThanOrEqual(counted.bytes);
    expect(streamed_bytes).toBeGreaterThan(0.5 * counted.bytes);
    const { step_bytes, experts_at_hand } = executor.streamed;
    expect(step_bytes).toBeLessThan(0.5 * experts_bytes);
    expect(experts_at_hand).toBeGreaterThan(0.2);
    expect([own!.tokens]).toEqual(generate(resident(path), [{ ...question }]).map(({ tokens }) => tokens));
  });

  test('is all of a layer where a batch needs nearly all of its experts', async () => {
    const path = await wideMixture('Q8_0');
    const arena = newArena({ ring_bytes: 16 * mib });
    const counted = countBytes(arena);
    const { engine } = streamed(path, arena, { prefill_chunk_tokens: 128 });
    generate(engine, [{ prompt: prompt(128, 1000, 5), max_new_tokens: 1 }]);
    // Of the last layer, one row's alone.
    expect(counted.experts).toBeGreaterThan(0.75 * experts_bytes);
    expect(counted.experts).toBeLessThan(experts_bytes);
  });

  test('is less where more experts stay, and none where all do', async () => {
    const path = await wideMixture('Q8_0');
    // What is asked again is found in part in the prefix cache, so batches are others.
    const lying = resident(path);
    const expected = [ask(lying), ask(lying)];
    const crossed = [0, 0.5, 2].map((share) => {
      const arena = newArena({ ring_bytes: 16 * mib, resident_bytes: 80 * mib });
      const { engine, executor } = streamed(path, arena, {}, Math.floor(share * (experts_bytes + 4 * mib)));
      needAllExperts(engine);
      expectSame(ask(engine), expected[0]!);
      const counted = countBytes(arena);
      expectSame(ask(engine), expected[1]!);
      return { experts: counted.experts, told: executor.streamed };
    });
    const [none, half, all] = crossed.map(({ experts }) => experts);
    expect(half).toBeLessThan(0.8 * none!);
    expect(all).toBe(0);
    expect(crossed[2]!.told.resident_bytes).toBeGreaterThan(experts_bytes);
    expect(crossed[2]!.told.experts_at_hand).toBeGreaterThan(crossed[0]!.told.experts_at_hand!);
  });
});

test('what stays does so whoever has the ring', async () => {
  const paths = await Promise.all([
    wideMixture('Q8_0', 1),
    wideMixture('Q8_0', 2),
    deepModel('tiny-llama', 'Q8_0'),
  ]);
  const lying = paths.map((path) => resident(path));
  const expected = [0, 1].map(() => lying.map((engine) => ask(engine)));
  const arena = newArena({ ring_bytes: 16 * mib, resident_bytes: 40 * mib });
  const engines = paths.map((path, index) => streamed(path, arena, {}, index === 0 ? 20 * mib : 0).engine);
  for (let round = 0; round < 2; round++)
    for (const [index, engine] of engines.entries()) expectSame(ask(engine), expected[round]![index]!);
});

test('a wrong guess costs time, and no token', async () => {
  const path = await wideMixture('Q8_0');
  const expected = ask(resident(path));
  const { engine } = streamed(path, newArena({ ring_bytes: 16 * mib }));
  const foresee = ExpertStream.prototype.foresee;
  let guesses = 0;
  vi.spyOn(ExpertStream.prototype, 'foresee').mockImplementation(function (this: ExpertStream, layer, guess) {
    const wrong = [...guess].map((expert) => (expert + 7 + guesses++) % 32);
    foresee.call(this, layer, wrong);
  });
  expectSame(ask(engine), expected);
  expect(guesses).toBeGreaterThan(100);
});

describe('bad input', () => {
  test('a file that changes ends the step, and no token comes of it', async () => {
    const path = join(folder, 'changes.gguf');
    copyFileSync(await wideMixture('Q8_0'), path);
    const { engine } = streamed(path, newArena({ ring_bytes: 16 * mib }));
    generate(engine, [{ prompt: prompt(20, 1000, 5), max_new_tokens: 2 }]);
    engine.add({
      id: 9,
      prompt_tokens: prompt(20, 1000, 6),
      sampler: { sample: () => ({ token: 1 }) },
      max_new_tokens: 2,
      stop_tokens: new Set(),
    });
    utimesSync(path, 1, 1);
    // What had come before it changed is right, and may be used up first.
    const codes = Array.from({ length: 4 }, () => codeOf(() => engine.step()));
    expect(codes).toContain('E_POOL_LOAD');
  });

  test('a file that changes while experts come ends the step, and the next one, too', async () => {
    const path = join(folder, 'experts.gguf');
    copyFileSync(await wideMixture('Q8_0'), path);
    const { engine } = streamed(path, newArena({ ring_bytes: 16 * mib }));
    const began = ExpertStream.prototype.bring;
    let brought = 0;
    vi.spyOn(ExpertStream.prototype, 'bring').mockImplementation(function (this: ExpertStream, ...asked) {
      if (++brought === 3) utimesSync(path, 1, 1);
      return began.apply(this, asked);
    });
    engine.add({
      id: 9,
      prompt_tokens: prompt(20, 1000, 6),
      sampler: { sample: () => ({ token: 1 }) },
      max_new_tokens: 2,
      stop_tokens: new Set(),
    });
    expect([0, 1].map(() => codeOf(() => engine.step()))).toEqual(['E_POOL_LOAD', 'E_POOL_LOAD']);
  });

  test('a read of a wrong guess that hangs ends that model’s steps, and not those of one whose experts all stay', async () => {
    const path = await wideMixture('Q8_0');
    const arena = newArena({ ring_bytes: 16 * mib, resident_bytes: 80 * mib });
    const staying = streamed(path, arena, {}, 80 * mib);
    // What is asked again is found in part in the prefix cache, so batches are others.
    ask(staying.engine);
    const expected = ask(staying.engine);
    const { engine } = streamed(path, arena);
    ask(engine);
    const letGo = hangOnCancel(arena);
    const foresee = ExpertStream.prototype.foresee;
    vi.spyOn(ExpertStream.prototype, 'foresee').mockImplementation(function (
      this: ExpertStream,
      layer,
      guess,
    ) {
      foresee.call(
        this,
        layer,
        [...guess].map((expert) => (expert + 7) % 32),
      );
    });
    const few = [{ prompt: prompt(20, 1000, 5), max_new_tokens: 24 }];
    expect(codeOf(() => generate(engine, few))).toBe('E_POOL_LOAD');
    expect(codeOf(() => engine.step())).toBe('E_POOL_LOAD');
    // An expert of it that was guessed at and never needed may not have come yet.
    letGo();
    vi.restoreAllMocks();
    expectSame(ask(staying.engine), expected);
  });

  test('a ring that has room for the experts of one layer is enough, and one that has not is refused', async () => {
    const path = await deepModel('tiny-qwen3moe', 'Q8_0');
    const layer_bytes = 8 * 3 * 256 * ((256 / 32) * 34);
    const { engine, executor } = streamed(path, newArena({ ring_bytes: layer_bytes + 0.75 * mib }));
    expectSame(ask(engine), ask(resident(path)));
    expect(executor.streamed.experts_at_hand).toBeLessThan(0.9);
    const none = newArena({ ring_bytes: layer_bytes - mib });
    expect(codeOf(() => streamed(path, none))).toBe('E_NATIVE_MEMORY');
  });

  test('layers come whole where a layout is made of all experts together', async () => {
    const path = await oddMixture();
    const { engine, executor } = streamed(path, newArena({ ring_bytes: 16 * mib }));
    expectSame(ask(engine), ask(resident(path)));
    // Ours is, where rows are not whole groups; that of files is not.
    const { ggml, plain } = testBackend();
    const isPacked =
      plain === ggml.ggml_backend_cpu_buffer_type() && packedProducts(ggml)?.canMultiply(GgmlType.BF16, 256);
    expect(executor.streamed.experts_at_hand === undefined).toBe(isPacked === true);
  });

  test('room that others have is lacking, and that is told', async () => {
    const path = await wideMixture('Q8_0');
    const arena = newArena({ ring_bytes: 16 * mib, resident_bytes: 8 * mib });
    const { engine, executor } = streamed(path, arena, {}, 60 * mib);
    expectSame(ask(engine), ask(resident(path)));
    expect(executor.streamed.because?.join()).toMatch(/were to stay, \d+ MiB come with every step/);
    expect(executor.streamed.resident_bytes).toBeLessThanOrEqual(8 * mib);
  });
});

test('the arena has its room back once a model is closed', async () => {
  const path = await wideMixture('Q8_0');
  const arena = newArena({ ring_bytes: 16 * mib, resident_bytes: 40 * mib });
  const { engine } = openStreamingEngine(options(path, {}), arena, { resident_bytes: 30 * mib });
  ask(engine);
  expect(arena.takeResident(30 * mib)).toBeUndefined();
  engine.close();
  expect(arena.takeResident(40 * mib)).toBeDefined();
});
