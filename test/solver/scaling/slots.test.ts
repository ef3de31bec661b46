import { expect, it } from 'vitest';
import { requestSlots } from '../../../solver/scaling/slots.ts';

it('a replica takes what its KV holds of usual requests, and no more than its engine computes at once', () => {
  const usual = { input_tokens: 512, output_tokens: 128 };
  expect(requestSlots({ max_sequences: 1024, kv_tokens: 400_000 }, usual)).toBe(694);
  expect(requestSlots({ max_sequences: 256, kv_tokens: 400_000 }, usual)).toBe(256);
  expect(
    requestSlots({ max_sequences: 1024, kv_tokens: 400_000 }, { input_tokens: 30_000, output_tokens: 4000 }),
  ).toBe(12);
  expect(requestSlots({ max_sequences: 1024, kv_tokens: 100 }, usual)).toBe(1);
});
