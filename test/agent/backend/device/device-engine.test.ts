/**
 * The engine on a Vulkan device against libllama on the same one, teacher-forced as on CPUs (`reference.test.ts`),
 * with memory of its own and from a pool of the device. Kernels there run on the CPU, and slowly: models and prompts
 * are small.
 */
import { afterAll, describe, expect, test } from 'vitest';
import { deviceBackend } from '../../../../agent/backend/device/device-backend.ts';
import { openModelFile } from '../../../../agent/engine/model-file.ts';
import { NativeEngine } from '../../../../agent/engine/native-engine.ts';
import { Stage } from '../../../../agent/engine/stage.ts';
import { DevicePool } from '../../../../agent/memory/device-pool.ts';
import type { WeightLoad } from '../../../../agent/memory/pooled-loading.ts';
import type { LoadLeg } from '../../../../spec/engine-contract.ts';
import { engineOptions, generate, model, prompt, referenceRows } from '../../engine/support.ts';
import { judge, reference, tellJudged } from './judge.ts';
import { isThere, lacking, vulkan } from './support.ts';

const mib = 2 ** 20;
/** Every kernel is compiled at its first use, on the cores that compute, too. */
const timeout = 240_000;

describe.skipIf(!isThere)(`an engine on a Vulkan device${lacking}`, { timeout }, () => {
  test('with weights, KV and results in one pool: loaded, reused, and in slabs that lie apart', async () => {
    const { backend } = vulkan();
    const pool = new DevicePool(backend, { pool_bytes: 64 * mib, threads: 2 });
    const path = await model('tiny-llama', 'Q8_0');
    const options = engineOptions(path, { kv_tokens: 2048, prefill_chunk_tokens: 128 });
    const reused: number[] = [];
    const legs: LoadLeg[] = [];
    const on_loaded = (load: WeightLoad): void => {
      reused.push(load.reused_bytes);
      legs.push(...load.legs);
    };
    const open = (): NativeEngine => {
      const opening = pool.open(options, { on_loaded });
      for (;;) {
        const engine = opening.advance(true);
        if (engine) return engine;
      }
    };
    const context = reference(path);
    for (let round = 0; round < 2; round++) {
      const engine = open();
      // Longer than a slab: gathered before it is attended.
      const asked = [270, 20].map((length, seed) => ({
        prompt: prompt(length, engine.info.n_vocab, seed + 5),
        max_new_tokens: 3,
      }));
      generate(engine, asked).forEach((generated, index) => {
        judge('Q8_0', generated, referenceRows(context, asked[index]!.prompt, generated.tokens));
      });
      pool.verify();
      expect(pool.report()).toMatchObject({ lost_bytes: 0 });
      expect(pool.report().scratch_bytes).toBeGreaterThan(0);
      engine.close();
      pool.verify();
      expect(pool.report()).toMatchObject({ kv_bytes: 0, scratch_bytes: 0, weights_bytes: 0 });
    }
    expect(reused[0]).toBe(0);
    // All went up once, out of the page cache or from the disk.
    const gone = (leg: LoadLeg['leg']): number =>
      legs.filter((one) => one.leg === leg).reduce((sum, { bytes }) => sum + bytes, 0);
    expect(gone('upload')).toBeGreaterThan(0);
    expect(gone('cache') + gone('disk')).toBe(gone('upload'));
    expect(legs.every(({ thread_ms }) => thread_ms > 0)).toBe(true);
    expect(reused[1]).toBe(pool.report().reusable_bytes);
    context.close();
    await pool.close();
  });

  test('operators are measured one by one beside a run as ever, also where the CPU computes some', async () => {
    const { ggml } = vulkan();
    const poorer: typeof ggml = {
      ...ggml,
      ggml_backend_dev_supports_op: (device, node) =>
        ggml.ggml_op_desc(node) !== 'SWIGLU' && ggml.ggml_backend_dev_supports_op(device, node),
    };
    const file = openModelFile(await model('tiny-llama', 'Q8_0'));
    for (const libraries of [ggml, poorer]) {
      const stages = [1, 2].map(
        () =>
          new Stage(deviceBackend(libraries, 'Vulkan0'), file, {
            threads: 1,
            kv_tokens: 512,
            kv_type: 'f16',
          }),
      );
      const [plain, measured] = stages as [Stage, Stage];
      const tokens = prompt(21, file.model.n_vocab, 5);
      for (const [past_tokens, rows] of [
        [0, 20],
        [20, 1],
      ] as const) {
        const segments = [{ rows, past_tokens, blocks: [0, 1], output: 'last' as const, logits: true }];
        const batch = { segments, tokens: tokens.subarray(past_tokens, past_tokens + rows) };
        const expected = plain.run(batch).logits.slice();
        const { logits, operators_s } = measured.run({ ...batch, measured: true });
        expect(logits).toEqual(expected);
        expect(operators_s).toHaveLength(measured.operators.length);
        expect(Math.min(...operators_s!)).toBeGreaterThan(0);
      }
      for (const stage of stages) stage.free();
    }
  });

  test('operators that a device lacks are computed on the CPU, between parts of the graph, and said', async () => {
    const { ggml } = vulkan();
    const lacks = ['GET_ROWS', 'SWIGLU'];
    const poorer: typeof ggml = {
      ...ggml,
      ggml_backend_dev_supports_op: (device, node) =>
        !lacks.includes(ggml.ggml_op_desc(node)!) && ggml.ggml_backend_dev_supports_op(device, node),
    };
    const backend = deviceBackend(poorer, 'Vulkan0');
    const path = await model('tiny-llama', 'Q4_0');
    const engine = new NativeEngine(engineOptions(path, { kv_tokens: 1024 }), backend);
    const context = reference(path);
    const asked = [3, 40].map((length, seed) => ({
      prompt: prompt(length, engine.info.n_vocab, seed + 1),
      max_new_tokens: 4,
    }));
    generate(engine, asked).forEach((generated, index) => {
      judge('Q4_0', generated, referenceRows(context, asked[index]!.prompt, generated.tokens));
    });
    const said = backend.kernels_left_out.map(({ message }) => message).sort();
    expect(said).toEqual(
      expect.arrayContaining([expect.stringMatching(/^GET_ROWS \(q4_0\) is computed on the CPU/)]),
    );
    expect(said.some((words) => words.startsWith('SWIGLU'))).toBe(true);
    context.close();
    engine.close();
  });

  test('prompts in many small chunks: what it computes in grows, and what was there before is given up', async () => {
    const { backend } = vulkan();
    const path = await model('tiny-llama', 'F16');
    const engine = new NativeEngine(engineOptions(path, { prefill_chunk_tokens: 16 }), backend);
    const asked = [60, 60].map((length, seed) => ({
      prompt: prompt(length, engine.info.n_vocab, seed + 70),
      max_new_tokens: 3,
    }));
    const first = generate(engine, asked);
    for (let round = 0; round < 3; round++)
      expect(generate(engine, asked).map(({ tokens }) => tokens)).toEqual(first.map(({ tokens }) => tokens));
    engine.close();
  });

  afterAll(tellJudged);
});
