import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { IterationProfile } from '../../../solver/sharing/profile.ts';
import {
  measuredIterations,
  measuredProfile,
} from '../../../solver/sharing-simulator/measured-iterations.ts';
import { cpuSpeed, decodeTime, formulaProfile } from './support.ts';

describe('a profile', () => {
  it('gives back what was measured, at every point of every measured table', () => {
    let points = 0;
    for (const model of ['llama-3.2-3b', 'llama-2-7b', 'llama-2-13b'] as const)
      for (const device of ['a100-80gb', 'xeon-32core-amx'] as const) {
        const profile = measuredProfile(model, device);
        const table = measuredIterations[model][device];
        for (const [tokens, ms] of table.prefill) expect(profile.prefill_ms(tokens)).toBeCloseTo(ms, 6);
        for (const [tokens, row] of Object.entries(table.decode))
          for (const [batch, ms] of row) {
            expect(profile.decode_ms(batch, Number(tokens))).toBeCloseTo(ms, 6);
            points++;
          }
      }
    expect(points).toBeGreaterThan(150);
  });

  it('holds what the paper says of its tables (§3.1)', () => {
    const small = measuredProfile('llama-2-7b', 'xeon-32core-amx');
    expect(small.decode_ms(16, 1024) / small.decode_ms(1, 1024)).toBeCloseTo(1.69, 2);
    const large = measuredProfile('llama-2-13b', 'xeon-32core-amx');
    expect(large.decode_ms(32, 2048) / large.decode_ms(32, 512)).toBeCloseTo(2.0, 1);
    expect(large.decode_ms(32, 2048)).toBeGreaterThan(250);
  });

  it('interpolates linearly in both directions, also beyond the last point', () => {
    const profile = formulaProfile(cpuSpeed);
    fc.assert(
      fc.property(fc.integer({ min: 1, max: 100 }), fc.integer({ min: 1, max: 9000 }), (batch, tokens) => {
        expect(profile.decode_ms(batch, tokens)).toBeCloseTo(decodeTime(cpuSpeed, batch, tokens), 6);
        expect(profile.prefill_ms(tokens)).toBeCloseTo(cpuSpeed.step_ms + tokens * cpuSpeed.prompt_ms, 6);
      }),
    );
  });

  it('continues rows where large batches did not fit, never below shorter sequences', () => {
    const profile = measuredProfile('llama-2-13b', 'xeon-32core-amx');
    // Measured to batch 16 at 3950 tokens: 264 ms at 8, 406 ms at 16.
    expect(profile.decode_ms(32, 3950)).toBeCloseTo(406 + 16 * ((406 - 264) / 8), 6);
    for (const batch of [1, 2, 4, 8, 16, 32, 64])
      for (const [shorter, longer] of [
        [512, 1024],
        [1024, 2048],
        [2048, 3950],
      ] as const)
        expect(profile.decode_ms(batch, longer)).toBeGreaterThanOrEqual(profile.decode_ms(batch, shorter));
  });

  it('charges a chunk at least what it takes alone, and all chunks at least the whole prompt', () => {
    const profile = measuredProfile('llama-2-7b', 'xeon-32core-amx');
    fc.assert(
      fc.property(fc.integer({ min: 1, max: 3000 }), fc.integer({ min: 1, max: 1000 }), (before, tokens) => {
        const whole = profile.prefill_ms(before + tokens);
        expect(profile.chunk_ms(before, tokens)).toBeGreaterThanOrEqual(profile.prefill_ms(tokens));
        expect(profile.prefill_ms(before) + profile.chunk_ms(before, tokens)).toBeGreaterThanOrEqual(
          whole - 1e-9,
        );
      }),
    );
    expect(profile.chunk_ms(0, 700)).toBe(profile.prefill_ms(700));
    expect(profile.prefill_ms(0)).toBe(0);
  });

  it('moves a tenth of the way to what is seen, exactly there where it was seen', () => {
    fc.assert(
      fc.property(
        fc.integer({ min: 1, max: 64 }),
        fc.integer({ min: 512, max: 3950 }),
        fc.double({ min: 0.7, max: 1.4, noNaN: true }),
        (batch, tokens, factor) => {
          const profile = measuredProfile('llama-2-7b', 'xeon-32core-amx');
          const decode = profile.decode_ms(batch, tokens);
          profile.observeDecode(batch, tokens, decode * factor);
          expect(profile.decode_ms(batch, tokens) / decode).toBeCloseTo(1 + 0.1 * (factor - 1), 6);
          const prefill = profile.prefill_ms(tokens);
          profile.observePrefill(tokens, prefill * factor);
          expect(profile.prefill_ms(tokens) / prefill).toBeCloseTo(1 + 0.1 * (factor - 1), 6);
        },
      ),
    );
  });

  it('follows a device that became half as fast, and takes one stall for what it is', () => {
    const profile = formulaProfile(cpuSpeed);
    const before = profile.decode_ms(8, 700);
    profile.observeDecode(8, 700, before * 1000);
    expect(profile.decode_ms(8, 700)).toBeLessThan(1.31 * before);
    for (let seen = 0; seen < 100; seen++) profile.observeDecode(8, 700, 2 * before);
    expect(profile.decode_ms(8, 700)).toBeCloseTo(2 * before, 0);
  });

  it('survives being kept: its samples make the same profile', () => {
    const profile = measuredProfile('llama-2-13b', 'a100-80gb');
    profile.observeDecode(5, 900, 40);
    const again = new IterationProfile(profile.samples());
    for (const [batch, tokens] of [
      [1, 512],
      [5, 900],
      [50, 3000],
    ] as const)
      expect(again.decode_ms(batch, tokens)).toBeCloseTo(profile.decode_ms(batch, tokens), 9);
    expect(again.prefill_ms(777)).toBeCloseTo(profile.prefill_ms(777), 9);
  });

  it('refuses samples that say nothing', () => {
    const decode = [{ batch: 1, tokens: 1, ms: 1 }];
    expect(() => new IterationProfile({ prefill: [], decode })).toThrow(RangeError);
    expect(() => new IterationProfile({ prefill: [{ tokens: 1, ms: 0 }], decode })).toThrow(/holds 0/);
  });
});
