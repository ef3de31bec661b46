/** What is asked of the models of this bench, and what is made of the times. */
import type { SequenceRequest } from '../../spec/engine-contract.ts';

export function request(id: number, tokens: number, max_new_tokens: number, seed = id): SequenceRequest {
  return {
    id,
    // No two prompts begin alike, so that none is found in the cache.
    prompt_tokens: Int32Array.from({ length: tokens }, (_, at) => (seed * 977 + at * 131) % 4096),
    sampler: { sample: (logits) => ({ token: argmax(logits) }) },
    max_new_tokens,
    stop_tokens: new Set(),
  };
}

function argmax(row: Float32Array): number {
  let best = 0;
  for (let index = 1; index < row.length; index++) if (row[index]! > row[best]!) best = index;
  return best;
}

export function median(values: readonly number[]): number {
  return [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)]!;
}
