import { describe, expect, it } from 'vitest';
import { GrowingProfile } from '../../../solver/sharing/growing-profile.ts';
import { cpuSpeed, decodeTime } from './support.ts';

/** What a worker measures in the first moments. */
function quick(): GrowingProfile {
  const prompt = (tokens: number): number => cpuSpeed.step_ms + tokens * cpuSpeed.prompt_ms;
  return GrowingProfile.of({
    prefill: [16, 64].map((tokens) => ({ tokens, ms: prompt(tokens) })),
    decode: [1, 2].map((batch) => ({ batch, tokens: 16, ms: decodeTime(cpuSpeed, batch, 16) })),
  });
}

describe('a profile that grows', () => {
  it('takes the first sight of a power of two for a point, and refreshes it from then on', () => {
    const growing = quick();
    const truth = decodeTime(cpuSpeed, 16, 1024);
    expect(growing.profile.decode_ms(16, 1024)).toBeLessThan(0.8 * truth);
    growing.observeDecode(16, 1024, truth);
    expect(growing.profile.decode_ms(16, 1024)).toBeCloseTo(truth, 6);
    // What was known before is known still.
    expect(growing.profile.decode_ms(1, 16)).toBeCloseTo(decodeTime(cpuSpeed, 1, 16), 6);
    const { profile } = growing;
    growing.observeDecode(16, 1024, 2 * truth);
    expect(growing.profile).toBe(profile);
    expect(profile.decode_ms(16, 1024)).toBeCloseTo(1.1 * truth, 6);
    expect(growing.points).toEqual({ prefill: 2, decode: 3 });
  });

  it('a chunk tells of the whole prompt that it ends', () => {
    const growing = quick();
    const before_ms = growing.profile.prefill_ms(1536);
    growing.observePrefill(1536, 512, 700);
    // 256 ms were expected; the line to the new point spreads the rest over the prompt.
    expect(growing.profile.chunk_ms(1536, 512)).toBeGreaterThan(400);
    expect(growing.profile.prefill_ms(2048)).toBeCloseTo(before_ms + 700, 3);
  });

  it('a stall of the machine at first sight counts four times at most', () => {
    const growing = quick();
    const expected_ms = growing.profile.prefill_ms(256);
    growing.observePrefill(0, 256, 1000 * expected_ms);
    expect(growing.profile.prefill_ms(256)).toBeCloseTo(4 * expected_ms, 6);
  });

  it('comes to within a twentieth of every time that it is shown, and is kept as it is', () => {
    const growing = quick();
    const cases = [1, 3, 8, 20].flatMap((batch) => [30, 200, 900, 3000].map((tokens) => ({ batch, tokens })));
    for (let round = 0; round < 40; round++)
      for (const { batch, tokens } of cases)
        growing.observeDecode(batch, tokens, decodeTime(cpuSpeed, batch, tokens));
    const kept = new GrowingProfile(structuredClone(growing.kept()));
    for (const { batch, tokens } of cases) {
      const truth = decodeTime(cpuSpeed, batch, tokens);
      expect(Math.abs(growing.profile.decode_ms(batch, tokens) / truth - 1)).toBeLessThan(0.05);
      expect(kept.profile.decode_ms(batch, tokens)).toBe(growing.profile.decode_ms(batch, tokens));
    }
    expect(kept.points).toEqual(growing.points);
  });
});
