import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { philox4x32, uniform } from '../../../../agent/text/sampling/philox.ts';

const hex = (words: readonly number[]) => words.map((word) => word.toString(16).padStart(8, '0')).join(' ');

describe('Philox4x32-10', () => {
  it('gives the known answers of Random123 (kat_vectors)', () => {
    expect(hex(philox4x32([0, 0, 0, 0], [0, 0]))).toBe('6627e8d5 e169c58d bc57ac4c 9b00dbd8');
    const ones = 0xffffffff;
    expect(hex(philox4x32([ones, ones, ones, ones], [ones, ones]))).toBe(
      '408f276d 41c83b0e a20bc7c6 6d5451fd',
    );
    expect(hex(philox4x32([0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344], [0xa4093822, 0x299f31d0]))).toBe(
      'd16cfe09 94fdcceb 5001e420 24126ea1',
    );
  });

  it('is a pure function of (seed, position, choice, attempt), in [0, 1), and differs where one differs', () => {
    fc.assert(
      fc.property(fc.maxSafeInteger(), fc.nat(200_000), fc.nat(7), (seed, position, choice) => {
        const draw = { seed, position, choice, attempt: 0 };
        const value = uniform(draw);
        expect(value).toBeGreaterThanOrEqual(0);
        expect(value).toBeLessThan(1);
        expect(uniform(draw)).toBe(value);
        expect(uniform({ ...draw, position: position + 1 })).not.toBe(value);
        expect(uniform({ ...draw, attempt: 1 })).not.toBe(value);
        expect(uniform({ ...draw, choice: choice + 1 })).not.toBe(value);
        expect(uniform({ ...draw, seed: seed > 0 ? seed - 1 : seed + 1 })).not.toBe(value);
      }),
    );
  });

  it('is uniform: 20,000 draws fill 20 bins as chance would (chi-squared, p > 1e-6)', () => {
    const bins = new Array<number>(20).fill(0);
    for (let position = 0; position < 20_000; position++)
      bins[Math.floor(uniform({ seed: 7, position, choice: 0, attempt: 0 }) * 20)]!++;
    const chi = bins.reduce((sum, count) => sum + (count - 1000) ** 2 / 1000, 0);
    expect(chi).toBeLessThan(60);
    expect(chi).toBeGreaterThan(2);
  });
});
