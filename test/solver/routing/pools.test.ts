import { describe, expect, test } from 'vitest';
import { byPool, type PoolMember } from '../../../solver/routing/pools.ts';

interface Named extends PoolMember {
  id: string;
}

const both: Named = { id: 'both' };
const prefill = (id: string, handover_tokens_min?: number): Named => ({
  id,
  pool: 'prefill',
  handover_tokens_min,
});
const decode: Named = { id: 'd', pool: 'decode' };
const order = (candidates: Named[], tokens: number | undefined): string[] =>
  byPool(candidates, tokens).map(({ pool, members }) => `${pool}: ${members.map(({ id }) => id).join(' ')}`);

describe('a request', () => {
  test('goes to any replica where there are no pools, or no prefill replica is left', () => {
    expect(order([both], 10)).toEqual(['undefined: both']);
    expect(order([decode], 1000)).toEqual(['undefined: d']);
    expect(order([], 10)).toEqual(['undefined: ']);
  });

  test('goes to the prefill pool first, and to the others where that has no place', () => {
    expect(order([decode, prefill('p'), both], undefined)).toEqual(['prefill: p', 'decode: d both']);
    expect(order([decode, prefill('p', 200)], 200)).toEqual(['prefill: p', 'decode: d']);
    // Nobody has measured yet what is short.
    expect(order([decode, prefill('p')], 1)).toEqual(['prefill: p', 'decode: d']);
    expect(order([prefill('p', 200)], 1)).toEqual(['prefill: p']);
  });

  test('is decoded where its prompt is computed, where that is shorter than any handover is worth', () => {
    expect(order([decode, prefill('p', 200), prefill('q', 100)], 99)).toEqual(['decode: d', 'prefill: p q']);
    expect(order([decode, prefill('p', 200), prefill('q', 100)], 100)[0]).toBe('prefill: p q');
  });
});
