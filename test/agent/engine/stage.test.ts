/** Stages: a model cut between any two operators computes the same bits as the whole. */

import { describe, expect, test } from 'vitest';
import { openModelFile } from '../../../agent/engine/model-file.ts';
import { enumerateOperators, stageOperators } from '../../../agent/engine/operators.ts';
import { Stage } from '../../../agent/engine/stage.ts';
import type { BatchSegment } from '../../../agent/engine/stage-batch.ts';
import { model, prompt } from './support.ts';
import { testBackend } from './test-backend.ts';

test('operators of a model in the order of computation', () => {
  expect(enumerateOperators(2)).toEqual([
    { kind: 'embedding' },
    { kind: 'attention', layer: 0 },
    { kind: 'feed_forward', layer: 0 },
    { kind: 'attention', layer: 1 },
    { kind: 'feed_forward', layer: 1 },
    { kind: 'output' },
  ]);
  expect(stageOperators(2, { begin: 4, end: 6 })).toHaveLength(2);
  for (const range of [
    { begin: 2, end: 2 },
    { begin: 0, end: 7 },
    { begin: -1, end: 2 },
  ])
    expect(() => stageOperators(2, range)).toThrowError(/does not exist/);
});

describe.each(['tiny-llama', 'tiny-qwen3moe'])('%s', (preset) => {
  test.each([1, 2, 3, 4, 5])('cut before operator %i', async (cut) => {
    const file = openModelFile(await model(preset, 'Q4_0'));
    const options = {
      threads: 1,
      kv_tokens: 512,
      kv_type: 'f16' as const,
      batch_invariant: true,
    };
    const end = enumerateOperators(file.model.n_layer).length;
    const whole = new Stage(testBackend(), file, options);
    const front = new Stage(testBackend(), file, { ...options, range: { begin: 0, end: cut } });
    const back = new Stage(testBackend(), file, { ...options, range: { begin: cut, end } });
    const first = { rows: 40, blocks: [0, 1, 2] };
    const second = { rows: 7, blocks: [5] };
    const segments = (output: BatchSegment['output']): BatchSegment[] =>
      [first, second].map((part) => ({ past_tokens: 0, output, logits: true, ...part }));
    const tokens = prompt(47, file.model.n_vocab, 5);
    const expected = whole.run({ segments: segments('all'), tokens }).logits.slice();
    const border = front.run({ segments: segments('none'), tokens }).hidden.slice(0, 47 * file.model.n_embd);
    const piped = back.run({ segments: segments('all'), hidden: border }).logits;
    expect(Buffer.from(piped.buffer, 0, 47 * file.model.n_vocab * 4)).toEqual(
      Buffer.from(expected.buffer, 0, 47 * file.model.n_vocab * 4),
    );
    for (const stage of [whole, front, back]) stage.free();
  });
});
