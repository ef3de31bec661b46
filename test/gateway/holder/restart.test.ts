import { expect, it } from 'vitest';
import { afterEnd, type GatewayEnd } from '../../../gateway/holder/restart.ts';

const killed: GatewayEnd = {
  code: 1,
  lived_ms: 3_600_000,
  has_listened: true,
  is_told: false,
  quick_ends: 0,
};

it('starts a gateway again at once, and with growing pauses one that dies at once', () => {
  expect(afterEnd(killed)).toEqual({ do: 'start', pause_ms: 0, quick_ends: 0 });
  const pauses: number[] = [];
  for (let quick_ends = 0; quick_ends < 9; quick_ends++) {
    const next = afterEnd({ ...killed, lived_ms: 900, quick_ends });
    if (next.do !== 'start') throw new Error('it ended');
    expect(next.quick_ends).toBe(quick_ends + 1);
    pauses.push(next.pause_ms);
  }
  expect(pauses).toEqual([0, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000, 30_000]);
  expect(afterEnd({ ...killed, quick_ends: 7 })).toEqual({ do: 'start', pause_ms: 0, quick_ends: 0 });
});

it('ends with a gateway that was told to, that never listened, or whose folder another one has', () => {
  expect(afterEnd({ ...killed, is_told: true, code: 0 })).toEqual({ do: 'end', code: 0 });
  expect(afterEnd({ ...killed, has_listened: false, code: 12 })).toEqual({ do: 'end', code: 12 });
  expect(afterEnd({ ...killed, has_listened: false, code: 0 })).toEqual({ do: 'end', code: 1 });
  expect(afterEnd({ ...killed, code: 10 })).toEqual({ do: 'end', code: 10 });
});
