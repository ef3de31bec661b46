/**
 * Keys and values of sequences that are gathered before they are attended: who finds no memory for that is refused
 * before anything of it is computed.
 */
import { describe, expect, test } from 'vitest';
import { NativeEngine } from '../../../../agent/engine/native-engine.ts';
import type { SequenceOutput } from '../../../../spec/engine-contract.ts';
import { BoundedResults } from '../../engine/bounded-results.ts';
import { engineOptions, GreedyRecorder, model, prompt } from '../../engine/support.ts';
import { isThere, lacking, vulkan } from './support.ts';

describe.skipIf(!isThere)(`long sequences on a Vulkan device${lacking}`, { timeout: 240_000 }, () => {
  test('have memory for all that is gathered of them before they begin, or are refused; others go on', async () => {
    const { backend } = vulkan();
    const path = await model('tiny-llama', 'Q8_0');
    const results = new BoundedResults(backend);
    const chunk = 32;
    const options = engineOptions(path, { prefill_chunk_tokens: chunk, max_sequences: 2 });
    const engine = new NativeEngine(options, backend, { scratch: results });
    // What each computes is not there from the one before.
    let scope = 0;
    const add = (id: number, length: number): void =>
      engine.add({
        id,
        cache_scope: String(scope++),
        prompt_tokens: prompt(length, engine.info.n_vocab, id),
        sampler: new GreedyRecorder(),
        max_new_tokens: 6,
        stop_tokens: new Set(),
      });
    const tokensOf = (outputs: readonly SequenceOutput[], id: number): number[] =>
      outputs.flatMap((output) => (output.id === id && output.token ? [output.token.token] : []));
    const rest = (): SequenceOutput[] => {
      const outputs: SequenceOutput[] = [];
      while (engine.busy) outputs.push(...engine.step().outputs);
      return outputs;
    };
    add(1, 40);
    const alone = tokensOf(rest(), 1);
    const { compute_bytes } = engine.stats();
    results.bytes_max = compute_bytes;
    add(1, 40);
    const begun = engine.step();
    expect(begun.prefill_tokens).toBe(chunk);
    // Its first chunks would find memory: they have few keys.
    add(2, 3000);
    const outputs = [...begun.outputs];
    let prefilled = 0;
    while (engine.busy) {
      const report = engine.step();
      outputs.push(...report.outputs);
      prefilled += report.prefill_tokens;
    }
    expect(prefilled).toBe(40 - chunk);
    expect(tokensOf(outputs, 1)).toEqual(alone);
    expect(outputs.filter(({ id }) => id === 2)).toEqual([
      expect.objectContaining({ finish: 'error', short_of_memory: true }),
    ]);
    // Twice a row for each key, in powers of two, and the mask of a chunk.
    const { row_bytes } = engine.kv;
    const gathered_bytes = 2 * row_bytes * 4096 + 2 * 4096 * chunk;
    expect(results.asked_bytes - compute_bytes).toBeGreaterThan(0.8 * gathered_bytes);
    // What it asked for is what its chunks would have taken, and they take no more.
    results.bytes_max = results.asked_bytes;
    add(3, 300);
    expect(tokensOf(rest(), 3)).toHaveLength(6);
    engine.verify();
    engine.close();
  });
});
