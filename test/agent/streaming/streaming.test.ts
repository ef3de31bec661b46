/**
 * Models that are larger than their arena: the same bits as resident ones, whatever is brought, evicted and switched.
 */
import { copyFileSync, mkdtempSync, rmSync, utimesSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, describe, expect, test, vi } from 'vitest';
import { Stage } from '../../../agent/engine/stage.ts';
import type { TensorLoading } from '../../../agent/memory/load/tensor-loading.ts';
import { openStreamingEngine } from '../../../agent/streaming/open-streaming.ts';
import type { RingUser } from '../../../agent/streaming/streaming-arena.ts';
import { generate, prompt } from '../engine/support.ts';
import { forgetFile, mappingsOf } from '../memory/page-cache.ts';
import { codeOf, mib } from '../memory/support.ts';
import {
  ask,
  closeAll,
  deepModel,
  expectSame,
  hangOnCancel,
  newArena,
  options,
  resident,
  streamed,
} from './support.ts';

const folder = mkdtempSync(join(tmpdir(), 'hpcserve-streaming-'));
afterEach(closeAll);
afterAll(() => rmSync(folder, { recursive: true }));

describe.each([
  ['tiny-llama', 'Q4_0', 0.9],
  ['tiny-llama', 'BF16', 3.5],
] as const)('%s in %s', (preset, quantization, ring_mib) => {
  test('gives the bits that it gives when it is resident', async () => {
    const path = await deepModel(preset, quantization);
    const expected = ask(resident(path));
    // Some two layers.
    const { engine, executor } = streamed(path, newArena({ ring_bytes: ring_mib * mib }));
    expectSame(ask(engine), expected);
    const { streamed_bytes, link } = executor.statistics;
    // Every batch brought every layer.
    expect(streamed_bytes).toBeGreaterThan(20 * executor.whole.weight_bytes);
    expect(link!.samples).toBeGreaterThanOrEqual(0);
  });
});

test('files of models that take turns stay mapped, until one of them is closed', async () => {
  const paths = await Promise.all([1, 2].map((seed) => deepModel('tiny-llama', 'BF16', seed)));
  const arena = newArena({ ring_bytes: 3.5 * mib });
  // What is on its way to a device is read, since it is copied once in any case.
  const count = arena.backend.upload ? 0 : 1;
  const one = openStreamingEngine(options(paths[0]!, {}), arena).engine;
  const { engine: other } = streamed(paths[1]!, arena);
  ask(one);
  const mapped = mappingsOf(paths[0]!);
  expect(mapped).toHaveLength(count);
  ask(other);
  expect(mappingsOf(paths[1]!)).toHaveLength(count);
  ask(one);
  expect(mappingsOf(paths[0]!)).toEqual(mapped);
  one.close();
  for (const path of paths) expect(mappingsOf(path)).toEqual([]);
  ask(other);
  expect(mappingsOf(paths[1]!)).toHaveLength(count);
});

test('while a layer computes, the next one is on its way already', async () => {
  const path = await deepModel('tiny-llama', 'Q8_0');
  const arena = newArena({ ring_bytes: 3 * mib });
  const { engine } = streamed(path, arena);
  let begun = 0;
  const begin = arena.loader.begin.bind(arena.loader);
  arena.loader.begin = (...asked) => {
    begun++;
    return begin(...asked);
  };
  let computed = 0;
  const ahead: number[] = [];
  const { run } = Stage.prototype;
  vi.spyOn(Stage.prototype, 'run').mockImplementation(function (this: Stage, batch) {
    // Rows of the embedding are no layer of the ring.
    if ('hidden' in batch) ahead.push(begun - ++computed);
    return run.call(this, batch);
  });
  generate(engine, [{ prompt: prompt(20, 1000, 5), max_new_tokens: 5 }]);
  vi.restoreAllMocks();
  expect(ahead.length).toBe(5 * 6);
  // The ring has room for each of six layers beside the one before it, but for one of a round at most.
  expect(ahead.filter((layers) => layers >= 1).length).toBeGreaterThanOrEqual(5 * 5);
});

test('a share of the layers stays, and is not brought again', async () => {
  const path = await deepModel('tiny-llama', 'Q8_0');
  const expected = ask(resident(path));
  const arena = newArena({ resident_bytes: 64 * mib });
  const all = streamed(path, newArena());
  const layer_bytes = all.executor.whole.weight_bytes / 6;
  const half = streamed(path, arena, {}, 3.5 * layer_bytes);
  expectSame(ask(half.engine), expected);
  ask(all.engine);
  const share = half.executor.statistics.streamed_bytes / all.executor.statistics.streamed_bytes;
  expect(share).toBeGreaterThan(0.3);
  expect(share).toBeLessThan(0.7);
  const { resident_bytes, step_bytes } = half.executor.streamed;
  expect(resident_bytes / (resident_bytes + step_bytes)).toBeCloseTo(0.5, 1);
  const whole = streamed(path, arena, {}, 60 * mib);
  expectSame(ask(whole.engine), expected);
  // Each layer came once.
  expect(whole.executor.statistics.streamed_bytes).toBe(whole.executor.streamed.resident_bytes);
  expect(whole.executor.streamed.step_bytes).toBe(0);
});

test('layers that stay do so whoever has the ring, and a model that has all of them does not take it', async () => {
  const paths = await Promise.all([1, 2].map((seed) => deepModel('tiny-llama', 'Q8_0', seed)));
  // Asked again, an engine computes what its cache lacks: other rows, which may have other bits (AMX).
  const lying = paths.map((path) => resident(path));
  const expected = [0, 1].map(() => lying.map((engine) => ask(engine)));
  const arena = newArena({ resident_bytes: 64 * mib });
  const layer_bytes = streamed(paths[0]!, arena).executor.streamed.step_bytes / 6;
  const some = streamed(paths[0]!, arena, {}, 2.5 * layer_bytes);
  const all = streamed(paths[1]!, arena, {}, 30 * mib);
  for (const [index, { engine }] of [all, some].entries()) expectSame(ask(engine), expected[0]![1 - index]!);
  const turnTo = arena.turnTo.bind(arena);
  const turned = new Set<RingUser>();
  arena.turnTo = (stream) => {
    turned.add(stream);
    turnTo(stream);
  };
  for (const [index, { engine }] of [all, some].entries()) expectSame(ask(engine), expected[1]![1 - index]!);
  expect([...turned]).toEqual([some.executor.stream]);
  expect(all.executor.statistics.streamed_bytes).toBe(all.executor.streamed.resident_bytes);
  const brought = some.executor.statistics.streamed_bytes;
  // Every round brought the others.
  const { resident_bytes, step_bytes } = some.executor.streamed;
  expect((brought - resident_bytes) % step_bytes).toBe(0);
  expect(resident_bytes).toBeGreaterThan(1.5 * layer_bytes);
});

test('what finds no room to stay comes with every step, and that is told', async () => {
  const path = await deepModel('tiny-llama', 'Q8_0');
  const arena = newArena({ resident_bytes: 1 * mib });
  const { engine, executor } = streamed(path, arena, {}, 60 * mib);
  expectSame(ask(engine), ask(resident(path)));
  expect(executor.streamed.resident_bytes).toBeLessThanOrEqual(mib);
  expect(executor.streamed.because?.join()).toMatch(/layers that were to stay, \d+ MiB come with every step/);
});

test('models take turns at the ring between any two steps', async () => {
  const paths = await Promise.all([1, 2, 3].map((seed) => deepModel('tiny-llama', 'Q8_0', seed)));
  const arena = newArena();
  const engines = paths.map((path) => streamed(path, arena).engine);
  const question = { prompt: prompt(20, 1000, 8), max_new_tokens: 24 };
  const expected = paths.map((path) => generate(resident(path), [{ ...question }])[0]!.tokens);
  const rows = engines.map(() => [] as number[]);
  for (const engine of engines)
    engine.add({
      id: 0,
      prompt_tokens: question.prompt,
      sampler: { sample: (logits) => ({ token: logits.indexOf(Math.max(...logits)) }) },
      max_new_tokens: 24,
      stop_tokens: new Set(),
    });
  while (engines.some(({ busy }) => busy))
    for (const [index, engine] of engines.entries())
      if (engine.busy)
        for (const { token } of engine.step().outputs) if (token) rows[index]!.push(token.token);
  expect(rows).toEqual(expected);
});

test('keys and values of all layers are swapped out and in', async () => {
  const path = await deepModel('tiny-llama', 'BF16');
  const [alone] = generate(resident(path), [{ prompt: prompt(40, 1000, 5), max_new_tokens: 20 }]);
  const { engine } = streamed(path, newArena());
  const tokens: number[] = [];
  engine.add({
    id: 1,
    prompt_tokens: prompt(40, 1000, 5),
    sampler: { sample: (logits) => ({ token: logits.indexOf(Math.max(...logits)) }) },
    max_new_tokens: 20,
    stop_tokens: new Set(),
  });
  for (let step = 0; engine.busy; step++) {
    if (step === 8) {
      const { kv } = engine;
      expect(engine.parkSequence(1)).toBe((40 + 7) * kv.token_bytes);
      expect(kv.n_matrices).toBe(12);
      expect(engine.restoreSequence(1)).toBe(true);
    }
    for (const { token } of engine.step().outputs) if (token) tokens.push(token.token);
  }
  expect(tokens).toEqual(alone!.tokens);
});

describe('bad input', () => {
  test('a file that leaves the page cache while it is streamed is read again: the same tokens', async () => {
    const path = join(folder, 'evicted.gguf');
    copyFileSync(await deepModel('tiny-llama', 'BF16'), path);
    const arena = newArena({ ring_bytes: 3.5 * mib });
    const loads: TensorLoading[] = [];
    const begin = arena.loader.begin.bind(arena.loader);
    arena.loader.begin = (...asked) => {
      const load = begin(...asked);
      loads.push(load);
      return load;
    };
    const read_bytes = (): number =>
      loads
        .splice(0)
        .reduce((sum, { legs }) => sum + (legs.find(({ leg }) => leg === 'disk')?.bytes ?? 0), 0);
    const { engine } = streamed(path, arena);
    const question = { prompt: prompt(20, 1000, 5), max_new_tokens: 6, stop_tokens: new Set<number>() };
    const [expected] = generate(resident(path), [{ ...question }]);
    generate(engine, [{ prompt: prompt(4, 1000, 6), max_new_tokens: 1 }]);
    read_bytes();
    const tokens: number[] = [];
    engine.add({
      id: 1,
      prompt_tokens: question.prompt,
      sampler: { sample: (logits) => ({ token: logits.indexOf(Math.max(...logits)) }) },
      max_new_tokens: 6,
      stop_tokens: question.stop_tokens,
    });
    while (engine.busy) {
      // Nobody has it in hand: what was begun for the next round is given up.
      arena.rest();
      await forgetFile(path);
      for (const { token } of engine.step().outputs) if (token) tokens.push(token.token);
      // What the kernel reads ahead is in memory by the time that it is asked for.
      expect(read_bytes()).toBeGreaterThan(0);
    }
    expect(tokens).toEqual(expected!.tokens);
  });

  test('a file that changes under its reader ends the step, and no token comes of it', async () => {
    const path = join(folder, 'changes.gguf');
    copyFileSync(await deepModel('tiny-llama', 'Q8_0'), path);
    const { engine } = streamed(path, newArena());
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

  test('a file that changes ends a model of which all layers stay, too', async () => {
    const path = join(folder, 'stays.gguf');
    copyFileSync(await deepModel('tiny-llama', 'Q8_0'), path);
    const arena = newArena({ resident_bytes: 64 * mib });
    const { engine, executor } = streamed(path, arena, {}, 60 * mib);
    ask(engine);
    // All of it stays: nothing of the file is read any more but rows of the embedding, which are checked.
    utimesSync(path, 1, 1);
    engine.add({
      id: 9,
      prompt_tokens: prompt(20, 1000, 6),
      sampler: { sample: () => ({ token: 1 }) },
      max_new_tokens: 2,
      stop_tokens: new Set(),
    });
    expect(codeOf(() => engine.step())).toBe('E_POOL_LOAD');
    expect(executor.streamed.step_bytes).toBe(0);
  });

  test('a read that hangs when the ring changes hands loses the arena, and the models that lie in it serve on', async () => {
    const paths = await Promise.all([1, 2].map((seed) => deepModel('tiny-llama', 'Q8_0', seed)));
    const arena = newArena({ resident_bytes: 64 * mib });
    const staying = streamed(paths[0]!, arena, {}, 30 * mib);
    ask(staying.engine);
    // As it answers from now on: with what its cache has.
    const expected = ask(staying.engine);
    const [one, other] = paths.map((path) => streamed(path, arena).engine);
    hangOnCancel(arena);
    const few = [{ prompt: prompt(20, 1000, 5), max_new_tokens: 2 }];
    generate(one!, few);
    expect(codeOf(() => generate(other!, few))).toBe('E_POOL_LOAD');
    // What was begun for it may come at any time: the ring is nobody's any more, not even the one's who had it.
    expect(codeOf(() => generate(one!, few))).toBe('E_POOL_LOAD');
    expectSame(ask(staying.engine), expected);
  });

  test('a ring that no layer fits into is refused with its size', async () => {
    const path = await deepModel('tiny-llama', 'BF16');
    const arena = newArena({ ring_bytes: 64 * 1024 });
    expect(codeOf(() => openStreamingEngine(options(path, {}), arena))).toBe('E_NATIVE_MEMORY');
  });
});
