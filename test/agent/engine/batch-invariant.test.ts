/**
 * batch_invariant: the same bits alone, in any batch, after a re-prefill of prompt and answer, with any
 * chunk size and number of threads. Bits, not tokens: logits are compared whole.
 */
import { describe, expect, test } from 'vitest';
import type { SynthQuantization } from '../../../native/synth/quantization.ts';
import type { EngineOptions, KernelsOption } from '../../../spec/engine-contract.ts';
import { type Asked, engineOptions, generate, model, prompt, Replayer, withEngine } from './support.ts';

const matrix: { preset: string; type: SynthQuantization; kernels?: KernelsOption }[] = [
  { preset: 'tiny-llama', type: 'BF16', kernels: 'ggml' },
  { preset: 'tiny-llama', type: 'Q4_0', kernels: 'ggml' },
  ...(['F32', 'F16', 'BF16', 'Q8_0', 'Q4_0', 'Q4_K'] as const).map((type) => ({
    preset: 'tiny-llama',
    type,
  })),
  { preset: 'tiny-qwen2', type: 'Q4_0' },
  { preset: 'tiny-qwen3', type: 'F16' },
  { preset: 'tiny-qwen3moe', type: 'Q4_0' },
  { preset: 'tiny-qwen3moe', type: 'F16' },
  { preset: 'tiny-mixtral', type: 'Q4_K' },
];
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
    const lengths = [1, 3, 30, 150, 600];
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
