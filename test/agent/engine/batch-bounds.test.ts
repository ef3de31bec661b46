/** What batches of a pipeline have at most, so that they and what comes of them fit into frames. */
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { batchBounds } from '../../../agent/engine/batch-bounds.ts';

test('whatever is asked for, no batch and nothing that comes of one is longer than what travels', () => {
  fc.assert(
    fc.property(
      fc.record({
        max_sequences: fc.integer({ min: 1, max: 4096 }),
        prefill_chunk_tokens: fc.integer({ min: 16, max: 65_536 }),
        n_embd: fc.integer({ min: 64, max: 16_384 }),
        n_vocab: fc.integer({ min: 256, max: 300_000 }),
        floats_max: fc.integer({ min: 2 ** 20, max: 2 ** 26 }),
      }),
      ({ floats_max, n_embd, n_vocab, ...asked }) => {
        const found = batchBounds(asked, { n_embd, n_vocab }, floats_max);
        const { max_sequences, prefill_chunk_tokens, embedded_rows_max } = found;
        expect(Math.min(max_sequences, prefill_chunk_tokens, embedded_rows_max)).toBeGreaterThan(0);
        expect(max_sequences).toBeLessThanOrEqual(asked.max_sequences);
        expect(prefill_chunk_tokens).toBeLessThanOrEqual(asked.prefill_chunk_tokens);
        expect((max_sequences + prefill_chunk_tokens) * n_embd).toBeLessThanOrEqual(floats_max);
        expect(max_sequences * n_vocab + embedded_rows_max * n_embd).toBeLessThanOrEqual(floats_max);
      },
    ),
  );
});

test('a model whose batches stay on their device has what is asked for', () => {
  const asked = { max_sequences: 4096, prefill_chunk_tokens: 65_536 };
  expect(batchBounds(asked, { n_embd: 8192, n_vocab: 152_064 })).toEqual({
    ...asked,
    embedded_rows_max: Number.POSITIVE_INFINITY,
  });
});
