/** Batches for whose results there is no memory: one sequence ends, with that for the reason, and the others go on. */
import { expect, test } from 'vitest';
import { NativeEngine } from '../../../agent/engine/native-engine.ts';
import { addPrompt, answer_tokens, BoundedResults, runAll, tokensOf } from './bounded-results.ts';
import { engineOptions, model } from './support.ts';
import { testBackend } from './test-backend.ts';

async function opened(results: BoundedResults): Promise<NativeEngine> {
  const path = await model('tiny-llama', 'Q8_0');
  const options = engineOptions(path, { kv_tokens: 2048, prefill_chunk_tokens: 128, batch_invariant: true });
  return new NativeEngine(options, testBackend(), { scratch: results });
}

test('the longest sequence ends; others answer as alone, also those that come later', async () => {
  const results = new BoundedResults(testBackend());
  const engine = await opened(results);
  try {
    addPrompt(engine, 1, 5);
    const alone = tokensOf(runAll(engine), 1);
    expect(alone).toHaveLength(answer_tokens);
    // As much as there is: a prompt of 100 rows takes more.
    results.bytes_max = engine.stats().compute_bytes;
    addPrompt(engine, 1, 5);
    const outputs = runAll(engine, (step) => {
      if (step === 2) addPrompt(engine, 2, 100);
    });
    expect(results.asked_bytes).toBeGreaterThan(results.bytes_max);
    expect(tokensOf(outputs, 1)).toEqual(alone);
    expect(outputs.filter(({ id }) => id === 2)).toEqual([
      {
        id: 2,
        finish: 'error',
        short_of_memory: true,
        error: 'the device has no memory for what is computed of 100 tokens, beside their KV',
      },
    ]);
    engine.verify();
    expect(engine.stats()).toMatchObject({ running: 0, waiting: 0, kv_tokens_used: 0 });
    addPrompt(engine, 1, 5);
    expect(tokensOf(runAll(engine), 1)).toEqual(alone);
    results.bytes_max = Number.POSITIVE_INFINITY;
    addPrompt(engine, 2, 100);
    expect(tokensOf(runAll(engine), 2)).toHaveLength(answer_tokens);
  } finally {
    engine.close();
  }
});
