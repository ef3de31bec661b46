/**
 * What is measured of a model before it serves, on the real engine, by a clock of the test: with and without a stall of
 * the machine.
 */
import { describe, expect, it } from 'vitest';
import { measureProfile } from '../../../../agent/device-worker/compute/profile-measurement.ts';
import type { GrowingProfile } from '../../../../solver/sharing/growing-profile.ts';
import type { Engine } from '../../../../spec/engine-contract.ts';
import { engineOptions, model, withEngine } from '../../engine/support.ts';

const limits = {
  sequence_tokens_max: 512,
  max_sequences: 4,
  prefill_chunk_tokens: 256,
  step_ms_min: 0,
};
const budget_ms = 500;
const token_us = 100;
const stall_us = 200_000;

/** The engine, whose iterations take as long as the tokens in them say; the stalled one (from 0) takes longer. */
function timed(engine: Engine, stalled?: number): Engine {
  let iteration = 0;
  return new Proxy(engine, {
    get(target, name) {
      if (name === 'step')
        return (...plan: Parameters<Engine['step']>) => {
          const done = target.step(...plan);
          const tokens = done.prefill_tokens + done.decode_tokens;
          const stall = tokens > 0 && iteration++ === stalled ? stall_us : 0;
          return { ...done, elapsed_us: tokens * token_us + stall };
        };
      const value = Reflect.get(target, name, target) as unknown;
      return typeof value === 'function' ? value.bind(target) : value;
    },
  });
}

async function measured(stalled?: number): Promise<GrowingProfile> {
  const path = await model('tiny-llama', 'F16');
  return withEngine(engineOptions(path), (engine) => {
    const measurement = measureProfile(timed(engine, stalled), limits, budget_ms);
    for (;;) {
      const { done, value } = measurement.next();
      if (done) return value;
    }
  });
}

describe('the measurement of a model', () => {
  it('has prompts and decode steps of every length that fits', async () => {
    const { points, profile } = await measured();
    expect(points).toEqual({ prefill: 3, decode: 6 });
    expect(profile.prefill_ms(512)).toBeCloseTo(51.3, 0);
    expect(profile.decode_ms(4, 64)).toBeCloseTo(0.4, 3);
  });

  it.each([0, 1])(
    'takes a stall in iteration %i, of the shortest prompt, for what it is',
    async (stalled) => {
      const { points, profile } = await measured(stalled);
      const undisturbed = await measured();
      expect(points).toEqual(undisturbed.points);
      expect(profile.prefill_ms(512)).toBe(undisturbed.profile.prefill_ms(512));
    },
  );
});
