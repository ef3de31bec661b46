/**
 * batch_invariant: the same bits alone, in any batch, after a re-prefill of prompt and answer, with any
 * chunk size and number of threads. Bits, not tokens: logits are compared whole.
 */
import { describe, expect, test, vi } from 'vitest';
import { DevicePool } from '../../../agent/memory/device-pool.ts';
import { loadGgml } from '../../../native/ggml.ts';
import { packedProducts } from '../../../native/packed-products.ts';
import type { SynthQuantization } from '../../../native/synth/quantization.ts';
import type { EngineOptions, KernelsOption } from '../../../spec/engine-contract.ts';
import { type Asked, engineOptions, generate, model, prompt, Replayer, withEngine } from './support.ts';
import { test_device, testBackend } from './test-backend.ts';

/** A device has no kernels of ours, and is slow here: one model of each kind of weight and of layer. */
const device_matrix = [
  { preset: 'tiny-llama', type: 'Q8_0', kernels: undefined },
  { preset: 'tiny-qwen3', type: 'F16', kernels: undefined },
] as const;
const cpu_matrix: { preset: string; type: SynthQuantization; kernels?: KernelsOption }[] = [
  { preset: 'tiny-llama', type: 'BF16', kernels: 'ggml' },
  { preset: 'tiny-llama', type: 'Q4_0', kernels: 'ggml' },
  ...(['F32', 'F16', 'BF16', 'Q8_0', 'Q4_0', 'Q4_K', 'Q4_K_M'] as const).map((type) => ({
    preset: 'tiny-llama',
    type,
  })),
  { preset: 'tiny-qwen2', type: 'Q4_0' },
  { preset: 'tiny-qwen3', type: 'F16' },
  { preset: 'tiny-qwen3moe', type: 'Q4_0' },
  { preset: 'tiny-qwen3moe', type: 'F16' },
  { preset: 'tiny-mixtral', type: 'Q4_K' },
];
const matrix = test_device === undefined ? cpu_matrix : device_matrix;
const invariant: Partial<EngineOptions> = { batch_invariant: true, prefill_chunk_tokens: 128 };
const new_tokens = 10;

function bits(row: Float32Array): Buffer {
  return Buffer.from(row.buffer, row.byteOffset, row.byteLength);
}

function expectSameBits(a: Float32Array[], b: Float32Array[], where: string): void {
  expect(b.length, where).toBe(a.length);
  a.forEach((row, index) => {
    expect(bits(row).equals(bits(b[index]!)), `${where}: logits of token ${index}`).toBe(true);
  });
}

describe.each(matrix)('$preset $type, kernels $kernels', ({ preset, type, kernels = 'auto' }) => {
  test('alone, in a batch, after a re-prefill, in other chunks and threads', async () => {
    const path = await model(preset, type);
    const lengths = test_device === undefined ? [1, 3, 30, 150, 600] : [1, 3, 30, 280];
    const ask = (n_vocab: number): Asked[] =>
      lengths.map((length, seed) => ({
        prompt: prompt(length, n_vocab, seed + 40),
        max_new_tokens: new_tokens,
      }));
    const alone = withEngine(engineOptions(path, { ...invariant, kernels }), (engine) => {
      const results = ask(engine.info.n_vocab).map((asked) => generate(engine, [asked])[0]!);
      const together = generate(engine, ask(engine.info.n_vocab), 3);
      together.forEach((result, index) => {
        expectSameBits(results[index]!.rows, result.rows, `in a batch, prompt of ${lengths[index]}`);
      });
      // Prompt and half of the answer as a prompt: the rest of the answer must come out the same.
      const half = new_tokens / 2;
      const continued = ask(engine.info.n_vocab).map((asked, index): Asked => {
        const said = results[index]!.tokens;
        return {
          prompt: Int32Array.from([...asked.prompt, ...said.slice(0, half)]),
          max_new_tokens: new_tokens - half,
          sampler: new Replayer(said.slice(half)),
        };
      });
      generate(engine, continued).forEach((result, index) => {
        expectSameBits(results[index]!.rows.slice(half), result.rows, `re-prefill of ${lengths[index]}`);
      });
      return results;
    });
    withEngine(
      engineOptions(path, { ...invariant, kernels, threads: 2, prefill_chunk_tokens: 37 }),
      (engine) => {
        generate(engine, ask(engine.info.n_vocab)).forEach((result, index) => {
          expectSameBits(
            alone[index]!.rows,
            result.rows,
            `two threads, chunks of 37, prompt of ${lengths[index]}`,
          );
        });
      },
    );
  });
});

/** By kernels of ours, which a device has none of. */
describe.skipIf(test_device !== undefined)('without being asked', () => {
  const unasked = async (type: SynthQuantization, more: Partial<EngineOptions>): Promise<boolean> =>
    withEngine(
      engineOptions(await model('tiny-llama', type), { batch_invariant: undefined, ...more }),
      (engine) => engine.stats().batch_invariant,
    );

  /** On AMX a row that decodes alone beside quantized weights has a product of its own. */
  const isAmx = packedProducts(loadGgml())?.set.name === 'AMX-BF16';

  test('answers are so where our kernels compute all of a model at no cost, and nowhere else', async () => {
    expect(await unasked('BF16', { kernels: 'own' })).toBe(true);
    expect(await unasked('BF16', { kernels: 'ggml' })).toBe(false);
    for (const type of ['Q8_0', 'Q4_0', 'Q4_K_M'] as const)
      expect(await unasked(type, { kernels: 'own' }), type).toBe(!isAmx);
    // Its products are ggml's.
    expect(await unasked('F32', { kernels: 'own' })).toBe(false);
    expect(await unasked('Q8_0', { kernels: 'own', batch_invariant: false })).toBe(false);
    expect(await unasked('BF16', { kernels: 'own', batch_invariant: false })).toBe(false);
  });

  test('a stage of a pipeline does not choose: it sees its own operators alone', async () => {
    const path = await model('tiny-llama', 'BF16');
    const pool = new DevicePool(testBackend(), { pool_bytes: 64 * 2 ** 20, threads: 1 });
    try {
      const range = { begin: 0, end: 3 };
      const opening = pool.openStage(
        engineOptions(path, { batch_invariant: undefined, kernels: 'own', stage: range }),
        {},
        'nobody',
        pool.layerKv('m'),
      );
      const stage = await vi.waitFor(() => opening.advance(true) ?? expect.fail('it loads'));
      expect(stage.batch_invariant).toBe(false);
      stage.free();
    } finally {
      await pool.close();
    }
  });

  test.each(['BF16', ...(isAmx ? [] : (['Q8_0', 'Q4_K_M'] as const))] as const)(
    '%s: they are the same bits in a batch',
    async (type) => {
      const path = await model('tiny-llama', type);
      withEngine(engineOptions(path, { batch_invariant: undefined, kernels: 'own' }), (engine) => {
        const asks = [3, 30, 150].map(
          (length): Asked => ({
            prompt: prompt(length, engine.info.n_vocab, length),
            max_new_tokens: new_tokens,
          }),
        );
        const alone = asks.map((asked) => generate(engine, [asked])[0]!);
        generate(engine, asks, 2).forEach((result, index) => {
          expectSameBits(alone[index]!.rows, result.rows, `prompt ${index}`);
        });
      });
    },
  );
});
