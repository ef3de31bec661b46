/** Batches for whose results there is no memory: one sequence ends, with that for the reason, and the others go on. */
import { expect, test } from 'vitest';
import { NativeEngine } from '../../../agent/engine/native-engine.ts';
import type { SequenceOutput } from '../../../spec/engine-contract.ts';
import { BoundedResults } from './bounded-results.ts';
import { engineOptions, GreedyRecorder, model, prompt, stepAlone } from './support.ts';
import { testBackend } from './test-backend.ts';

const answer_tokens = 12;

async function opened(results: BoundedResults): Promise<NativeEngine> {
  const path = await model('tiny-llama', 'Q8_0');
  const options = engineOptions(path, { kv_tokens: 2048, prefill_chunk_tokens: 128, batch_invariant: true });
  return new NativeEngine(options, testBackend(), { scratch: results });
}

function add(engine: NativeEngine, id: number, length: number): void {
  engine.add({
    id,
    prompt_tokens: prompt(length, engine.info.n_vocab, id),
    sampler: new GreedyRecorder(),
    max_new_tokens: answer_tokens,
    stop_tokens: new Set(),
  });
}

function tokensOf(outputs: readonly SequenceOutput[], id: number): number[] {
  return outputs.flatMap((output) => (output.id === id && output.token ? [output.token.token] : []));
}

/** @param meanwhile after each step */
function run(engine: NativeEngine, meanwhile: (step: number) => void = () => {}): SequenceOutput[] {
  const outputs: SequenceOutput[] = [];
  for (let step = 0; engine.busy; step++) {
    outputs.push(...stepAlone(engine).outputs);
    meanwhile(step);
  }
  return outputs;
}

test('the longest sequence ends; others answer as alone, also those that come later', async () => {
  const results = new BoundedResults(testBackend());
  const engine = await opened(results);
  try {
    add(engine, 1, 5);
    const alone = tokensOf(run(engine), 1);
    expect(alone).toHaveLength(answer_tokens);
    // As much as there is: a prompt of 100 rows takes more.
    results.bytes_max = engine.stats().compute_bytes;
    add(engine, 1, 5);
    const outputs = run(engine, (step) => {
      if (step === 2) add(engine, 2, 100);
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
    add(engine, 1, 5);
    expect(tokensOf(run(engine), 1)).toEqual(alone);
    results.bytes_max = Number.POSITIVE_INFINITY;
    add(engine, 2, 100);
    expect(tokensOf(run(engine), 2)).toHaveLength(answer_tokens);
  } finally {
    engine.close();
  }
});
