import { describe, expect, it } from 'vitest';
import { retryAfter_s } from '../../../solver/routing/retry-after.ts';

describe('when to come back', () => {
  const candidate = (requests: number) => {
    return {
      session_id: 's',
      running: 4,
      waiting: requests - 4,
      max_sequences: 4,
      unreported: 0,
      unanswered: 0,
      kv_tokens_total: 0,
      kv_tokens_used: 0,
      native: false,
      cpu: false,
    };
  };
  it('is when the first place is free: by Little’s law, of the nearest replica, within bounds', () => {
    // 4 computed at once for 8 s each: one ends every 2 s. 14 places, 16 requests: three must end.
    expect(
      retryAfter_s(
        [candidate(16)],
        () => 10,
        () => 8,
      ),
    ).toBe(6);
    expect(
      retryAfter_s(
        [candidate(16), candidate(14)],
        () => 10,
        () => 8,
      ),
    ).toBe(2);
    expect(
      retryAfter_s(
        [candidate(100_000)],
        () => 10,
        () => 8,
      ),
    ).toBe(120);
    expect(
      retryAfter_s(
        [candidate(16)],
        () => 10,
        () => 0.01,
      ),
    ).toBe(1);
  });
});
