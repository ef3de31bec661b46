/**
 * Graphs of many shapes take turns in one memory for intermediate results. ggml's allocator tells graphs apart by how
 * many tensors they have: one that was taken for another would be placed where the other's tensors lay.
 */
import { expect, test } from 'vitest';
import { cpuBackend } from '../../../agent/backend/cpu/cpu-backend.ts';
import { deviceBackend } from '../../../agent/backend/device/device-backend.ts';
import { NativeEngine } from '../../../agent/engine/native-engine.ts';
import { type Ggml, loadGgml } from '../../../native/ggml.ts';
import { engineOptions, type Generated, generate, model, prompt, withEngine } from './support.ts';
import { test_device } from './test-backend.ts';

test.each(['F16', 'Q8_0', 'Q4_0'] as const)(
  'batches of every make-up give the logits that each gives alone, %s',
  async (type) => {
    const path = await model('tiny-llama', type);
    const options = engineOptions(path, {
      batch_invariant: true,
      max_sequences: 12,
      prefill_chunk_tokens: 24,
    });
    const lengths = [1, 3, 30, 2, 7, 60, 1, 5, 17, 25, 4, 2, 9, 33, 1, 6, 12, 48, 8, 3];
    const asked = (seed: number) => ({
      prompt: prompt(lengths[seed]!, 256, seed + 1),
      max_new_tokens: 2 + (seed % 7),
    });
    const alone: Generated[] = lengths.map((_, seed) =>
      withEngine(options, (engine) => generate(engine, [asked(seed)])[0]!),
    );
    withEngine(options, (engine) => {
      for (const every of [0, 1, 2, 3]) {
        const mixed = generate(
          engine,
          lengths.map((_, seed) => asked(seed)),
          every,
        );
        mixed.forEach(({ tokens, rows }, seed) => {
          expect(tokens).toEqual(alone[seed]!.tokens);
          expect(rows).toEqual(alone[seed]!.rows);
        });
      }
    });
  },
);

test.each([true, false])(
  'prompts one after the other, with and without padded rows (batch invariant: %s)',
  async (batch_invariant) => {
    const options = engineOptions(await model('tiny-llama', 'F16'), { batch_invariant });
    const lengths = [16, 7, 20, 9, 32, 1, 4, 3, 2, 8, 5, 16, 33];
    // No two begin alike: of those that do only the rest is computed, in another shape.
    const prompts = lengths.map((length, index) => prompt(length, 256, index + 1));
    const asked = (tokens: Int32Array) => ({ prompt: tokens, max_new_tokens: 1 });
    const alone = prompts.map((tokens) =>
      withEngine(options, (engine) => generate(engine, [asked(tokens)])[0]!),
    );
    withEngine(options, (engine) => {
      // Again, where the same bits are promised whatever the shape.
      for (const _ of batch_invariant ? [1, 2] : [1])
        prompts.forEach((tokens, index) => {
          expect(generate(engine, [asked(tokens)])[0]!.rows).toEqual(alone[index]!.rows);
        });
    });
  },
);

test('a shape that was there before is computed with the graph that is kept of it', async () => {
  let placed = 0;
  const known = loadGgml();
  const ggml: Ggml = {
    ...known,
    ggml_gallocr_alloc_graph: (...asked) => {
      placed++;
      return known.ggml_gallocr_alloc_graph(...asked);
    },
  };
  const backend = test_device === undefined ? cpuBackend(ggml) : deviceBackend(ggml, test_device);
  const engine = new NativeEngine(engineOptions(await model('tiny-llama', 'F16')), backend);
  const asked = { prompt: prompt(20, 256, 3), max_new_tokens: 12 };
  generate(engine, [asked]);
  expect(placed).toBeGreaterThan(0);
  // Its prompt is known by now, so that less of it is computed.
  const { rows } = generate(engine, [asked])[0]!;
  const before = placed;
  expect(generate(engine, [asked])[0]!.rows).toEqual(rows);
  expect(placed).toBe(before);
  engine.close();
});
