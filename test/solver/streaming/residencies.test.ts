import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import {
  busyShare,
  chooseResidencies,
  type ModelOptions,
} from '../../../solver/streaming/choose-residencies.ts';
import { type ResidencyQuestion, residencyCosts } from '../../../solver/streaming/residency-cost.ts';

const llama: ResidencyQuestion = {
  weight_bytes: 16e9,
  working_bytes: 1e9,
  arena_bytes: 1e9,
  resident_share: 0,
  requests_per_s: 0.01,
  iterations_per_request: 100,
  iteration_s: 0.01,
  iteration_link_bytes: 16e9,
  link_bytes_per_s: 400e9,
  kept_probability: 0,
};
const gb = 1e9;

describe('the cost of a residency', () => {
  it('is memory where resident, a load where reused, and the link where streamed', () => {
    const { resident, reuse, streamed } = residencyCosts(llama);
    expect(resident).toMatchObject({ device_bytes: 17e9, request_s: 1, link_bytes_per_s: 0 });
    expect(reuse.switch_s).toBe(0.04);
    expect(reuse.request_s).toBeCloseTo(1.04, 12);
    // In use for 1.04 s of every 100.
    expect(reuse.device_bytes).toBeCloseTo(0.0104 * 17e9, 0);
    expect(streamed).toMatchObject({ device_bytes: 2e9, switch_s: 0, iteration_s: 0.04, request_s: 4 });
    expect(streamed.link_bytes_per_s).toBeCloseTo(16e9, 0);
  });

  it('falls with what stays on the device, and with what is still there', () => {
    const half = residencyCosts({ ...llama, resident_share: 0.5, kept_probability: 0.75 });
    expect(half.streamed.iteration_s).toBe(0.02);
    expect(half.reuse.switch_s).toBe(0.01);
    expect(residencyCosts({ ...llama, resident_share: 1 }).streamed.iteration_s).toBe(0.01);
  });
});

function enumerated(models: readonly ModelOptions[], memory_bytes: number): number | undefined {
  let best: number | undefined;
  const visit = (index: number, bytes: number, share: number): void => {
    if (bytes > memory_bytes) return;
    if (index === models.length) {
      best = Math.min(best ?? Number.POSITIVE_INFINITY, share);
      return;
    }
    for (const option of models[index]!.options)
      visit(index + 1, bytes + option.device_bytes, share + busyShare(models[index]!, option));
  };
  visit(0, 0, 0);
  return best;
}

const question = fc.record({
  weight_bytes: fc.integer({ min: 1, max: 60 }).map((size) => size * gb),
  requests_per_s: fc.double({ min: 0.0001, max: 2, noNaN: true }),
  kept_probability: fc.double({ min: 0, max: 1, noNaN: true }),
  iterations_per_request: fc.integer({ min: 1, max: 500 }),
});

describe('residencies of several models', () => {
  const optionsOf = (name: string, own: Partial<ResidencyQuestion>): ModelOptions => {
    const asked = { ...llama, ...own };
    const costs = residencyCosts({ ...asked, iteration_link_bytes: asked.weight_bytes });
    return { name, requests_per_s: asked.requests_per_s, options: Object.values(costs) };
  };

  it('are resident for what is asked all the time, and streamed for the long tail', () => {
    const busy = optionsOf('busy', { requests_per_s: 3 });
    const tail = Array.from({ length: 12 }, (_, index) =>
      optionsOf(`tail-${index}`, { requests_per_s: 1e-4, kept_probability: 0 }),
    );
    // None of the tail may count on memory that it takes when it is asked.
    const long = tail.map((model) => ({
      ...model,
      options: model.options.filter(({ residency }) => residency !== 'reuse'),
    }));
    const chosen = chooseResidencies([busy, ...long], 44e9)!;
    expect(chosen[0]).toMatchObject({ name: 'busy', residency: 'resident' });
    expect(chosen.slice(1).map(({ residency }) => residency)).toEqual(long.map(() => 'streamed'));
    expect(chosen[1]!.because).toContain('which serve other models better');
  });

  it('come near the best, held against all choices', () => {
    let [ours, theirs, exact, runs] = [0, 0, 0, 0];
    fc.assert(
      fc.property(
        fc.array(question, { minLength: 1, maxLength: 5 }),
        fc.integer({ min: 1, max: 150 }),
        (asked, memory_gb) => {
          const models = asked.map((own, index) => optionsOf(String(index), own));
          const best = enumerated(models, memory_gb * gb);
          const chosen = chooseResidencies(models, memory_gb * gb);
          expect(chosen === undefined).toBe(best === undefined);
          if (!chosen || best === undefined) return;
          const picked = chosen.map(
            ({ residency }, index) =>
              models[index]!.options.find((option) => option.residency === residency)!,
          );
          expect(picked.reduce((sum, { device_bytes }) => sum + device_bytes, 0)).toBeLessThanOrEqual(
            memory_gb * gb,
          );
          const share = picked.reduce((sum, option, index) => sum + busyShare(models[index]!, option), 0);
          const least = models.reduce(
            (sum, model) =>
              sum +
              busyShare(
                model,
                model.options.reduce((a, b) => (b.device_bytes < a.device_bytes ? b : a)),
              ),
            0,
          );
          // Of what a choice can save over the least memory, at least half.
          expect(least - share).toBeGreaterThanOrEqual((least - best) / 2 - 1e-9);
          [ours, theirs, runs] = [ours + least - share, theirs + least - best, runs + 1];
          if (share <= best * (1 + 1e-9)) exact++;
        },
      ),
      { seed: 1, numRuns: 400 },
    );
    expect(ours / theirs).toBeGreaterThan(0.99);
    expect(exact / runs).toBeGreaterThan(0.9);
  });

  it('are none where not even the least memory is there', () => {
    expect(chooseResidencies([optionsOf('one', {})], 1e6)).toBeUndefined();
  });
});
