import { describe, expect, it } from 'vitest';
import { affinityCost, estimateLoad_s } from '../../../solver/reuse/affinity.ts';

const gb = 1e9;
const weights = (bytes: number, resident_bytes: number, load_bytes_per_s = 2 * gb) => ({
  bytes,
  resident_bytes,
  load_bytes_per_s,
  resting: true,
});

describe('affinity', () => {
  it('estimates (S − S′) / B', () => {
    expect(estimateLoad_s(weights(8 * gb, 2 * gb))).toBe(3);
    expect(estimateLoad_s(weights(8 * gb, 9 * gb))).toBe(0);
    expect(estimateLoad_s(weights(8 * gb, 8 * gb, 0))).toBe(0);
    expect(estimateLoad_s(weights(8 * gb, 0, 0))).toBe(Number.POSITIVE_INFINITY);
  });

  it('weighs what lies there against how fast the rest comes, and devices that load something else less', () => {
    const inOrder = [
      affinityCost(estimateLoad_s(weights(8 * gb, 8 * gb)), false),
      affinityCost(estimateLoad_s(weights(8 * gb, 0, 8 * gb)), false),
      affinityCost(estimateLoad_s(weights(8 * gb, 4 * gb, 1 * gb)), false),
      affinityCost(estimateLoad_s(weights(8 * gb, 4 * gb, 0)), false),
      affinityCost(estimateLoad_s(weights(8 * gb, 8 * gb)), true),
      affinityCost(estimateLoad_s(weights(8 * gb, 0, 0)), true),
    ];
    expect(inOrder).toEqual([...inOrder].sort((a, b) => a - b));
    expect(new Set(inOrder).size).toBe(inOrder.length);
    expect(inOrder[0]).toBe(0);
    expect(inOrder.at(-1)).toBeLessThan(1);
  });
});
