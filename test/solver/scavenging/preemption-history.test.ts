/** Binomial tails of many replicas, against closed forms and exact sums. */
import { describe, expect, it } from 'vitest';
import { shareAtLeast } from '../../../solver/scavenging/preemption-history.ts';

/** The tail in whole numbers: `p` is `parts` of 100. */
function exactTail(least: number, replicas: number, parts: number): number {
  let ways = 1n;
  let sum = 0n;
  for (let alive = 0; alive <= replicas; alive++) {
    if (alive >= least)
      sum += ways * BigInt(parts) ** BigInt(alive) * BigInt(100 - parts) ** BigInt(replicas - alive);
    ways = (ways * BigInt(replicas - alive)) / BigInt(alive + 1);
  }
  const digits = 10n ** 18n;
  return Number((sum * digits) / 100n ** BigInt(replicas)) / 1e18;
}

describe('the share of replicas that are there', () => {
  it.each([0.03, 0.5, 0.9, 0.97, 0.999])('is p to their number for all of them, p = %d', (p) => {
    for (let replicas = 1; replicas <= 500; replicas++) {
      const expected = p ** replicas;
      expect(Math.abs(shareAtLeast(replicas, replicas, p) - expected)).toBeLessThanOrEqual(1e-9 * expected);
    }
  });

  it.each([3, 50, 80, 97])('is the sum in whole numbers for any of them, p = %d of 100', (parts) => {
    for (const replicas of [1, 7, 64, 250, 500])
      for (let least = 1; least <= replicas; least += Math.ceil(replicas / 40))
        expect(shareAtLeast(least, replicas, parts / 100)).toBeCloseTo(exactTail(least, replicas, parts), 9);
  });

  it('is certain or nothing at the ends', () => {
    expect(shareAtLeast(0, 9, 0)).toBe(1);
    expect(shareAtLeast(10, 9, 1)).toBe(0);
    expect(shareAtLeast(9, 9, 1)).toBe(1);
    expect(shareAtLeast(1, 9, 0)).toBe(0);
  });
});
