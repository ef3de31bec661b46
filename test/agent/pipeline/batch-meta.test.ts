/** What frames say beside hidden states: each stage fills in its part, where others have theirs. */
import { expect, test } from 'vitest';
import {
  type BatchMeta,
  decodeBatchMeta,
  encodeBatchMeta,
  writeOperators,
  writeTimes,
} from '../../../agent/pipeline/batch-meta.ts';
import { decodeResult, encodeResult } from '../../../agent/pipeline/result-meta.ts';

const batch: BatchMeta = {
  times_us: [
    [0, 0, 0],
    [0, 0, 0],
    [0, 0, 0],
  ],
  operators_us: new Array<number>(6).fill(0),
  damaged: [7, 2 ** 40],
  commands: [
    { do: 'copy', from_block: 3, to_block: 4, rows: 5 },
    { do: 'forget', id: 9 },
  ],
  segments: [
    {
      segment: { past_tokens: 40, rows: 2, blocks: [5, 6, 9], output: 'last', logits: true },
      embeds: false,
      samples: false,
    },
  ],
};

test('stages of a measured batch write times and operators into their places, and into no other', () => {
  const meta = encodeBatchMeta(batch);
  writeTimes(meta, 0, [100, 101, 102]);
  writeTimes(meta, 2, [300, 301, 302]);
  writeOperators(meta, 3, 0, [11, 12]);
  writeOperators(meta, 3, 2, [13, 14, 15]);
  writeOperators(meta, 3, 5, [16]);
  expect(decodeBatchMeta(meta)).toEqual({
    ...batch,
    times_us: [
      [100, 101, 102],
      [0, 0, 0],
      [300, 301, 302],
    ],
    operators_us: [11, 12, 13, 14, 15, 16],
  });
});

test('a batch that is not measured says nothing of operators, and results carry on what batches say', () => {
  const plain = { ...batch, operators_us: [] };
  expect(decodeBatchMeta(encodeBatchMeta(plain))).toEqual(plain);
  const result = { times_us: batch.times_us, operators_us: [1, 2, 3], damaged: [4], segments: [] };
  const { meta, payload } = encodeResult(result);
  expect(payload).toEqual([]);
  expect(decodeResult(meta, new Float32Array())).toEqual(result);
});
