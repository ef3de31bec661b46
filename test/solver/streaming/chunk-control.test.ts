import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { chunk_settings, nextChunk_tokens } from '../../../solver/streaming/chunk-control.ts';

/** Weights cross in 40 ms; from 200 tokens on arithmetic takes longer. */
const streamed = (tokens: number): number => Math.max(40, tokens / 5);

describe('the chunk of an iteration', () => {
  it('takes what fits under the time that the weights take anyway, even where promises are broken already', () => {
    const chunk = nextChunk_tokens({ iteration_ms: streamed, waiting_tokens: 5000, budget_ms: 10 });
    // 40 ms and a twentieth.
    expect(chunk).toBe(210);
  });

  it('takes what the budget allows, and all where nobody decodes', () => {
    expect(nextChunk_tokens({ iteration_ms: streamed, waiting_tokens: 5000, budget_ms: 100 })).toBe(450);
    expect(
      nextChunk_tokens({ iteration_ms: streamed, waiting_tokens: 5000, budget_ms: Number.POSITIVE_INFINITY }),
    ).toBe(chunk_settings.chunk_tokens_max);
    expect(nextChunk_tokens({ iteration_ms: streamed, waiting_tokens: 0, budget_ms: 100 })).toBe(0);
  });

  it('lets no prompt starve', () => {
    const steep = (tokens: number): number => 100 + 500 * tokens;
    expect(nextChunk_tokens({ iteration_ms: steep, waiting_tokens: 5000, budget_ms: 1 })).toBe(
      chunk_settings.chunk_tokens_min,
    );
    expect(nextChunk_tokens({ iteration_ms: steep, waiting_tokens: 5, budget_ms: 1 })).toBe(5);
  });

  it('does not cut a prompt into parts that each read all experts again', () => {
    const routed = (tokens: number): number => 20 + 180 * (1 - 0.9 ** tokens);
    // Ten tokens would be in time, and the prompt a hundred iterations.
    expect(nextChunk_tokens({ iteration_ms: routed, waiting_tokens: 1000, budget_ms: 150 })).toBeGreaterThan(
      600,
    );
  });

  it('takes more of a mixture of experts at once: a few rows read all of them already', () => {
    const routed = (tokens: number): number => Math.max(20 + 180 * (1 - 0.75 ** tokens), tokens / 2);
    expect(nextChunk_tokens({ iteration_ms: routed, waiting_tokens: 5000, budget_ms: 30 })).toBeGreaterThan(
      380,
    );
  });

  it('is the largest within the limit, held against every other', () => {
    fc.assert(
      fc.property(
        fc.double({ min: 0, max: 100, noNaN: true }),
        fc.double({ min: 0, max: 2, noNaN: true }),
        fc.integer({ min: 1, max: 600 }),
        fc.double({ min: 1, max: 300, noNaN: true }),
        (floor_ms, slope, waiting_tokens, budget_ms) => {
          const iteration_ms = (tokens: number): number => Math.max(floor_ms, 3 + slope * tokens);
          const least = Math.min(waiting_tokens, chunk_settings.chunk_tokens_min);
          const limit = Math.max(0.9 * budget_ms, 1.05 * iteration_ms(0));
          const sizes = [waiting_tokens];
          for (let size = least; size < waiting_tokens; size *= 2) sizes.push(size);
          const added = (size: number): number => (iteration_ms(size) - iteration_ms(0)) / size;
          const cheapest = Math.min(...sizes.map(added));
          const frugal = Math.min(...sizes.filter((size) => added(size) <= 1.5 * cheapest));
          let best = iteration_ms(waiting_tokens) <= limit ? waiting_tokens : frugal;
          for (let tokens = 0; tokens <= waiting_tokens; tokens++)
            if (iteration_ms(tokens) <= limit) best = Math.max(best, tokens);
          expect(nextChunk_tokens({ iteration_ms, waiting_tokens, budget_ms })).toBe(best);
        },
      ),
    );
  });
});
