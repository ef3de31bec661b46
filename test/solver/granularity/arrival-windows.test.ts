import { describe, expect, it } from 'vitest';
import { ArrivalWindows } from '../../../solver/granularity/arrival-windows.ts';
import { drawGammaArrivals } from '../../../solver/pipeline-simulator/surges.ts';

function watch(arrivals_ms: readonly number[], now_ms: number) {
  const windows = new ArrivalWindows();
  for (const at_ms of arrivals_ms) windows.observe(at_ms);
  return windows.read(now_ms);
}

describe('arrivals over several windows', () => {
  it('have the rate and the CV they were drawn with, on a steady load', () => {
    for (const cv of [0.5, 1, 2, 4]) {
      const drawn = drawGammaArrivals({ rate_per_s: 20, cv, requests: 40_000, passes_mean: 1, seed: 3 });
      const arrivals_ms = drawn.map(({ arrival_ms }) => arrival_ms);
      const { windows, gradient_per_s2, peak_seen } = watch(arrivals_ms, arrivals_ms.at(-1)!);
      const long = windows.at(-1)!;
      expect(long.cv / cv).toBeGreaterThan(0.9);
      expect(long.cv / cv).toBeLessThan(1.1);
      expect(long.rate_per_s).toBeGreaterThan(18);
      expect(long.rate_per_s).toBeLessThan(22);
      expect(peak_seen).toBe(true);
      expect(Math.abs(gradient_per_s2)).toBeLessThan(3);
    }
  });

  it('differ by window: a burst shows in the short one first, and the long one remembers it', () => {
    const quiet = Array.from({ length: 600 }, (_, index) => index * 500);
    const burst = Array.from({ length: 400 }, (_, index) => 300_000 + index * 5);
    const during = watch([...quiet, ...burst], 302_000);
    expect(during.rate_per_s).toBeGreaterThan(60);
    expect(during.windows.at(-1)!.rate_per_s).toBeLessThan(5);
    const after = watch([...quiet, ...burst, ...quiet.slice(0, 60).map((at) => at + 310_000)], 340_000);
    expect(after.rate_per_s).toBeLessThan(5);
    expect(after.rate_peak_per_s).toBeGreaterThan(20);
    expect(after.cv).toBeGreaterThan(1);
  });

  it('see a rise, and take none for one', () => {
    const rising = Array.from({ length: 400 }, (_, index) => 15_000 * Math.sqrt(index / 400));
    expect(watch(rising, 15_000).gradient_per_s2).toBeGreaterThan(2);
    const even = Array.from({ length: 400 }, (_, index) => 37.5 * index);
    expect(watch(even, 15_000).gradient_per_s2).toBe(0);
  });

  it('are empty before the first request', () => {
    expect(new ArrivalWindows().read(1e9)).toMatchObject({ cv: 0, rate_per_s: 0, peak_seen: false });
  });
});
