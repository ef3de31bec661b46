/** What decides whose products multiply, given how long each takes. */
import { expect, it } from 'vitest';
import { isWon } from '../../../agent/engine/product-race.ts';

/** What ours takes over what ggml's takes: for 1, 4, 16 and 64 rows. */
it.each([
  { ratios: [0.9, 0.9, 0.9, 0.9], won: true },
  { ratios: [1, 1, 1, 1], won: false },
  { ratios: [1.05, 0.9, 1, 1], won: true },
  // A tenth more for one number of rows, and little gained.
  { ratios: [1.12, 0.9, 0.95, 0.9], won: false },
  // The same, where prompts take half.
  { ratios: [1.12, 0.7, 0.5, 0.4], won: true },
  { ratios: [1.3, 0.7, 0.5, 0.4], won: false },
  { ratios: [0.9, 0.9, 0.9, 1.5], won: false },
])('$ratios: $won', ({ ratios, won }) => {
  expect(isWon(ratios)).toBe(won);
});
