/**
 * Weights in a pool beside weights in memory of their own: the same bytes, hence bit-identical logits, whatever
 * was loaded, evicted and moved before.
 */

import { spawnSync } from 'node:child_process';
import {
  closeSync,
  copyFileSync,
  mkdtempSync,
  openSync,
  rmSync,
  statSync,
  truncateSync,
  writeFileSync,
  writeSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, describe, expect, test } from 'vitest';
import { openModelFile } from '../../../agent/engine/model-file.ts';
import { NativeEngine } from '../../../agent/engine/native-engine.ts';
import { stageOperators } from '../../../agent/engine/operators.ts';
import { planWeights } from '../../../agent/engine/weight-plan.ts';
import { ContentHashCache } from '../../../agent/memory/content-hashes.ts';
import { DevicePool, type DevicePoolOptions } from '../../../agent/memory/device-pool.ts';
import { learnContents } from '../../../agent/memory/learn-contents.ts';
import type { SynthQuantization } from '../../../native/synth/quantization.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import {
  argmax,
  engineOptions,
  generate,
  model,
  prompt,
  reference,
  referenceRows,
  topGap,
} from '../engine/support.ts';
import { test_device, testBackend } from '../engine/test-backend.ts';
import { codeOf, finish, mib, openIn } from './support.ts';

const folder = mkdtempSync(join(tmpdir(), 'hpcserve-pool-'));
let pools: DevicePool[] = [];
afterEach(async () => {
  for (const pool of pools) {
    pool.verify();
    await pool.close();
  }
  pools = [];
});
afterAll(() => rmSync(folder, { recursive: true }));

function newPool(options: Partial<DevicePoolOptions> = {}): DevicePool {
  const pool = new DevicePool(testBackend(), { pool_bytes: 32 * mib, threads: 1, ...options });
  pools.push(pool);
  return pool;
}

const question = prompt(40, 1000, 9);

function answer(engine: NativeEngine): { tokens: number[]; rows: Float32Array[] } {
  return generate(engine, [{ prompt: question, max_new_tokens: 8 }])[0]!;
}

/** What the model answers with weights in memory of its own. */
function alone(path: string): ReturnType<typeof answer> {
  return aloneAgain(path, 1)[0]!;
}

/** The same, asked several times: from the second time on it knows the prompt, and computes less of it at once. */
function aloneAgain(path: string, times: number): ReturnType<typeof answer>[] {
  const engine = new NativeEngine(engineOptions(path, { kv_tokens: 512 }), testBackend());
  try {
    return Array.from({ length: times }, () => answer(engine));
  } finally {
    engine.close();
  }
}

function expectSame(engine: NativeEngine, expected: ReturnType<typeof answer>): void {
  const { tokens, rows } = answer(engine);
  expect(tokens).toEqual(expected.tokens);
  expect(rows).toEqual(expected.rows);
}

const matrix: [string, SynthQuantization][] = [
  ['tiny-llama', 'F32'],
  ['tiny-llama', 'Q4_0'],
  ['tiny-qwen2', 'BF16'],
  ['tiny-qwen3', 'Q4_K'],
  ['tiny-qwen3', 'Q8_0'],
  ['tiny-mixtral', 'Q4_0'],
  ['tiny-qwen3moe', 'Q4_K'],
];

describe('weights in a pool', () => {
  test.each(matrix)('%s in %s: bit-identical logits, and none of it is read again', async (preset, type) => {
    const path = await model(preset, type);
    const expected = alone(path);
    // Small units cut every matrix, and many threads fill them.
    const pool = newPool({ threads: 2, unit_bytes: 16 * 1024 });
    const first = openIn(pool, path);
    expect(first.load).toMatchObject({ reused_bytes: 0, moved_bytes: 0 });
    expect(first.load.missing_bytes).toBeGreaterThan(mib / 2);
    expectSame(first.engine, expected);
    first.engine.close();
    const again = openIn(pool, path);
    expect(again.load).toMatchObject({ missing_bytes: 0, reused_bytes: first.load.missing_bytes });
    expectSame(again.engine, expected);
    again.engine.close();
  });

  test('answer as libllama does', async () => {
    const path = await model('tiny-llama', 'Q4_0');
    const { engine } = openIn(newPool(), path);
    const { tokens } = answer(engine);
    engine.close();
    const context = reference(path);
    const rows = referenceRows(context, question, tokens);
    context.close();
    rows.forEach((row, index) => {
      if (topGap(row) > 1) expect(tokens[index]).toBe(argmax(row));
    });
  });

  test.each(['Q4_0', 'F16'] as const)('%s read through a mapping and by pread are the same', async (type) => {
    const path = await model('small-llama', type);
    const expected = alone(path);
    for (const how of [{ mapped: true }, { mapped: false }, { mapped: true, populate: true }]) {
      const { engine } = openIn(newPool({ ...how, pool_bytes: 128 * mib }), path);
      expectSame(engine, expected);
      engine.close();
    }
  });

  // Weights in use are not moved: on a device, whose pool is no larger than asked, they leave the largest model no room
  // in less.
  const share = test_device === undefined ? 0.45 : 0.6;
  test('stay right while models come and go in a pool that holds about half of them', async () => {
    const paths = await Promise.all(
      (['tiny-llama', 'tiny-qwen2', 'tiny-qwen3', 'tiny-mixtral', 'tiny-qwen3moe'] as const).flatMap(
        (preset) => (['Q4_0', 'BF16'] as const).map((type) => model(preset, type)),
      ),
    );
    const expected = paths.map((path) => aloneAgain(path, 2));
    const sizes = paths.map((path) => statSync(path).size);
    const pool = newPool({ pool_bytes: sizes.reduce((sum, bytes) => sum + bytes, 0) * share });
    let reused = 0;
    let evicted = 0;
    let both: { engine: NativeEngine; index: number } | undefined;
    for (let turn = 0; turn < 24; turn++) {
      // Strides of 3 and 1 in turn: every model comes back, some soon and some late.
      const index = (2 * turn + (turn % 2)) % paths.length;
      const { engine, load } = openIn(pool, paths[index]!);
      reused += load.reused_bytes;
      evicted += load.evicted_bytes;
      pool.verify();
      expectSame(engine, expected[index]![0]!);
      // The model before is still there, and nothing of its answer has changed, whether its prompt is still known or
      // not.
      if (both) expect(expected[both.index]).toContainEqual(answer(both.engine));
      both?.engine.close();
      both = { engine, index };
    }
    both?.engine.close();
    expect(reused).toBeGreaterThan(0);
    expect(evicted).toBeGreaterThan(0);
  });

  test('would show a single damaged byte', async () => {
    const path = await model('tiny-llama', 'F32');
    const expected = alone(path);
    const pool = newPool();
    openIn(pool, path).engine.close();
    const { engine } = openIn(pool, path);
    const { pool_bytes, free_bytes } = pool.store.stats();
    const view = new Uint8Array(pool_bytes - free_bytes);
    pool.memory.read(0, view);
    // A bit of the fraction: one of the exponent would make numbers that are none, which ends the model by itself.
    for (let at = 0; at < view.length; at += 4096) view[at + 2]! ^= 0x10;
    pool.memory.write(0, view);
    expect(answer(engine).rows[0]).not.toEqual(expected.rows[0]);
    engine.close();
  });
});

/** A copy of a model in which one late tensor has other bytes, as a fine-tune has. */
function fineTune(path: string, name: string): string {
  const copy = join(folder, name);
  copyFileSync(path, copy);
  const { gguf } = openModelFile(copy);
  const tensor = gguf.tensors.find((candidate) => candidate.name === 'blk.1.ffn_down.weight')!;
  const descriptor = openSync(copy, 'r+');
  writeSync(descriptor, new Uint8Array(64).fill(0x11), 0, 64, tensor.offset_bytes + 640);
  closeSync(descriptor);
  return copy;
}

describe('models that share tensors', () => {
  test('share regions once their contents are known, and differ where they differ', async () => {
    const base = await model('tiny-llama', 'Q4_0');
    const tuned = fineTune(base, 'tuned.gguf');
    const expected = [alone(base), alone(tuned)];
    expect(expected[0]!.rows[0]).not.toEqual(expected[1]!.rows[0]);
    const hashes = new ContentHashCache(join(folder, 'hashes'));
    const pool = newPool({ content_hashes: hashes });
    const first = openIn(pool, base);
    // Nothing is known of the contents yet: the files are strangers.
    const strangers = openIn(pool, tuned);
    expect(strangers.load.reused_bytes).toBe(0);
    strangers.engine.close();
    for (const path of [base, tuned]) {
      await learnContents(hashes, path);
      pool.adoptContents(path);
    }
    pool.verify();
    pool.store.clear();
    const second = openIn(pool, tuned);
    expect(second.load.missing_bytes).toBeGreaterThan(0);
    expect(second.load.missing_bytes).toBeLessThan(first.load.missing_bytes / 4);
    expectSame(second.engine, expected[1]!);
    expectSame(first.engine, expected[0]!);
    first.engine.close();
    second.engine.close();
  });
});

describe('a load that fails', () => {
  test('because the file is cut off meanwhile leaves nothing, and the others go on', async () => {
    const healthy = await model('tiny-qwen2', 'Q4_0');
    const expected = alone(healthy);
    const path = join(folder, 'cut.gguf');
    copyFileSync(await model('tiny-llama', 'BF16'), path);
    const pool = newPool({ unit_bytes: 64 * 1024, mapped: false, threads: 2 });
    const other = openIn(pool, healthy);
    const before = pool.store.stats();
    const options = engineOptions(path, {
      kv_tokens: 512,
      on_progress: ({ bytes_loaded }) => {
        if (bytes_loaded > 0 && statSync(path).size > mib) truncateSync(path, mib / 4);
      },
    });
    expect(codeOf(() => finish(pool.open(options)))).toBe('E_POOL_LOAD');
    pool.verify();
    expect(pool.store.stats()).toEqual(before);
    expectSame(other.engine, expected);
    other.engine.close();
  });

  test('because the file was replaced in place is told, and its tensors are not kept', async () => {
    const path = join(folder, 'replaced.gguf');
    copyFileSync(await model('tiny-llama', 'Q4_0', 1), path);
    const pool = newPool({ unit_bytes: 64 * 1024 });
    let written = false;
    const options = engineOptions(path, {
      kv_tokens: 512,
      // From another process, as it happens; within a lease it would wait for the load's end.
      on_progress: () => {
        if (written) return;
        written = true;
        const touched = spawnSync('touch', [path]);
        expect(touched.status).toBe(0);
      },
    });
    expect(codeOf(() => finish(pool.open(options)))).toBe('E_POOL_LOAD');
    expect(pool.store.stats()).toMatchObject({ reusable_bytes: 0, active_bytes: 0 });
  });

  test('because the model is larger than the pool says so, and evicts nothing', async () => {
    const small = await model('tiny-qwen2', 'Q4_0');
    const pool = newPool({ pool_bytes: 8 * mib });
    openIn(pool, small).engine.close();
    const before = pool.store.stats();
    const large = await model('small-llama', 'BF16');
    expect(codeOf(() => openIn(pool, large))).toBe('E_POOL_FULL');
    expect(pool.store.stats()).toEqual(before);
  });

  test('because the file is gone', async () => {
    const path = join(folder, 'gone.gguf');
    copyFileSync(await model('tiny-llama', 'Q4_0'), path);
    const file = openModelFile(path);
    const plan = planWeights(file.gguf, file.model, stageOperators(file.model.n_layer), 'own');
    const pool = newPool();
    expect(pool.affinity(file.gguf, plan).reusable_bytes).toBe(0);
    rmSync(path);
    expect(codeOf(() => pool.weights().begin(file.gguf, plan, 'nobody'))).toBe('E_POOL_LOAD');
    writeFileSync(path, 'no model');
    expect(codeOf(() => pool.weights().begin(file.gguf, plan, 'nobody'))).toBe('E_POOL_LOAD');
  });
});

describe('kernels', () => {
  // A device has its own, whatever is asked for.
  const onCpu = test_device === undefined;
  test('of another kind read weights of their own, which models share as far as they can', async () => {
    const path = await model('tiny-llama', 'Q4_0');
    const pool = newPool();
    const own = openIn(pool, path, { model: 'own' });
    const theirs = openIn(pool, path, { model: 'theirs' }, { kernels: 'ggml' });
    expect(own.load.reused_bytes).toBe(0);
    // Vectors and the embedding are the same; every matrix of a CPU is there twice.
    expect(theirs.load.reused_bytes).toBeGreaterThan(0);
    if (onCpu) {
      expect(theirs.load.missing_bytes).toBeGreaterThan(own.load.missing_bytes / 2);
      expect(Object.keys(own.engine.stats().layouts)).toContainEqual(expect.stringMatching(/^PACKED_/));
    } else expect(theirs.load.missing_bytes).toBe(0);
    expect(Object.keys(theirs.engine.stats().layouts).join()).not.toMatch(/PACKED_/);
    const expected = alone(path);
    expectSame(own.engine, expected);
    for (const { engine } of [own, theirs]) engine.close();
    const again = openIn(pool, path, { model: 'own' });
    expect(again.load.missing_bytes).toBe(0);
    expectSame(again.engine, expected);
    again.engine.close();
  });
});

describe('affinity', () => {
  test('counts the bytes of a model that are there', async () => {
    const path = await model('tiny-llama', 'Q4_0');
    const file = openModelFile(path);
    const plan = planWeights(file.gguf, file.model, stageOperators(file.model.n_layer), 'own');
    const pool = newPool();
    const { model_bytes, reusable_bytes } = pool.affinity(file.gguf, plan);
    expect(reusable_bytes).toBe(0);
    expect(model_bytes).toBeGreaterThan(mib / 2);
    const { engine } = openIn(pool, path);
    expect(pool.affinity(file.gguf, plan)).toEqual({ model_bytes, reusable_bytes: model_bytes });
    engine.close();
    expect(pool.affinity(file.gguf, plan).reusable_bytes).toBe(model_bytes);
    expect(pool.report().resident_models).toEqual([{ model: path, bytes: model_bytes }]);
  });
});

/** A copy of a model in which a matrix has one scale, or weight, that is no number. */
function damaged(path: string, bits: number): string {
  const copy = join(folder, `damaged-${bits}.gguf`);
  copyFileSync(path, copy);
  const { gguf } = openModelFile(copy);
  const tensor = gguf.tensors.find((candidate) => candidate.name === 'blk.1.ffn_down.weight')!;
  const descriptor = openSync(copy, 'r+');
  writeSync(descriptor, Uint8Array.of(bits & 0xff, bits >> 8), 0, 2, tensor.offset_bytes);
  closeSync(descriptor);
  return copy;
}

describe('weights that are no numbers', () => {
  if (test_device !== undefined) {
    // A device gets the bytes of the file, which nobody reads on their way.
    test.each(['Q8_0', 'Q4_0'] as const)(
      'end the answer, and never the pool, where weights are only copied: %s',
      async (quantization) => {
        const sound = await model('tiny-llama', quantization);
        const expected = alone(sound);
        const pool = newPool({ threads: 2, unit_bytes: 16 * 1024 });
        for (const f16 of [0x7e00, 0xfc00]) {
          const { engine } = openIn(pool, damaged(sound, f16));
          expect(errorOf(() => answer(engine)).code).toBe('E_ENGINE_NUMBERS');
          engine.close();
        }
        pool.verify();
        const { engine } = openIn(pool, sound);
        expectSame(engine, expected);
        engine.close();
      },
    );
    return;
  }

  // What ggml leaves in plain memory is copied without a look; Q4_0 it converts on every x86 CPU since AVX2.
  test.each([
    ['own', 'Q8_0'],
    ['ggml', 'Q4_0'],
  ] as const)(
    'are refused by name with kernels: %s (%s), and the pool goes on',
    async (kernels, quantization) => {
      const sound = await model('tiny-llama', quantization);
      const pool = newPool({ threads: 2, unit_bytes: 16 * 1024 });
      for (const f16 of [0x7e00, 0xfc00]) {
        const refused = errorOf(() => openIn(pool, damaged(sound, f16), {}, { kernels }));
        expect(refused.code).toBe('E_MODEL_WEIGHTS');
        expect(refused.because.join()).toContain('blk.1.ffn_down.weight');
        // Without a pool, too.
        const alone = () => new NativeEngine(engineOptions(damaged(sound, f16), { kernels })).close();
        expect(errorOf(alone).code).toBe('E_MODEL_WEIGHTS');
      }
      pool.verify();
      const { engine } = openIn(pool, sound, {}, { kernels });
      expect(answer(engine).tokens).toHaveLength(8);
      engine.close();
    },
  );
});

function errorOf(act: () => unknown): HpcserveError {
  try {
    act();
  } catch (error) {
    if (error instanceof HpcserveError) return error;
    throw error;
  }
  throw new Error('nothing was refused');
}
