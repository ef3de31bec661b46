/** Batches of a streamed model for whose results there is no memory, at its first part or at a later one. */
import { afterEach, expect, test } from 'vitest';
import type { ScratchSource } from '../../../agent/engine/scratch.ts';
import { addPrompt, answer_tokens, BoundedResults, runAll, tokensOf } from '../engine/bounded-results.ts';
import { testBackend } from '../engine/test-backend.ts';
import { mib } from '../memory/support.ts';
import { closeAll, deepModel, newArena, streamed, wideMixture } from './support.ts';

afterEach(closeAll);

const models = { layers: () => deepModel('tiny-llama', 'Q8_0'), 'a mixture': () => wideMixture('Q8_0') };

test.each([
  ['layers', 0],
  ['layers', 3],
  ['a mixture', 0],
  ['a mixture', 3],
] as const)('%s, at part %i: the longest sequence ends, and others answer as alone', async (kind, first) => {
  const arena = newArena({ ring_bytes: 16 * mib });
  const results = new BoundedResults(testBackend());
  let parts = 0;
  const scratch: ScratchSource = {
    open: () => (parts++ < first ? new BoundedResults(testBackend()) : results).open(),
  };
  Object.assign(arena, { scratch });
  const { engine } = streamed(await models[kind](), arena, {
    prefill_chunk_tokens: 128,
    batch_invariant: true,
  });
  expect(parts).toBeGreaterThan(first);
  addPrompt(engine, 1, 5);
  const alone = tokensOf(runAll(engine), 1);
  expect(alone).toHaveLength(answer_tokens);
  // As much as there is: a prompt of 100 rows takes more.
  results.bytes_max = results.asked_bytes;
  addPrompt(engine, 1, 5);
  const outputs = runAll(engine, (step) => {
    if (step === 2) addPrompt(engine, 2, 100);
  });
  expect(results.asked_bytes).toBeGreaterThan(results.bytes_max);
  expect(tokensOf(outputs, 1)).toEqual(alone);
  expect(outputs.filter(({ id }) => id === 2)).toMatchObject([
    { id: 2, finish: 'error', short_of_memory: true },
  ]);
  engine.verify();
  results.bytes_max = Number.POSITIVE_INFINITY;
  addPrompt(engine, 2, 100);
  addPrompt(engine, 1, 5);
  const after = runAll(engine);
  expect(tokensOf(after, 1)).toEqual(alone);
  expect(tokensOf(after, 2)).toHaveLength(answer_tokens);
});
