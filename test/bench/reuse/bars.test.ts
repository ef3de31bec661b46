/** What a cell of the bench `reuse` has to reach, by what the best policy gives there. */
import { expect, test } from 'vitest';
import { barsOf } from '../../../bench/reuse/bars.ts';
import { beladyLoads_bytes } from '../../../bench/reuse/belady.ts';

test('where Belady spares most of the loads, the bars are the paper’s', () => {
  const { load_ratio, ttft_ratio, bytes_ratio } = barsOf({
    whole_bytes: 100,
    belady_bytes: 20,
    load_share: 0.5,
  });
  expect(load_ratio).toEqual({ least: 1.8, words: 'ratio ≥ 1.80' });
  expect(ttft_ratio.words).toBe('ratio ≥ 1.16');
  // 70 % of the 80 that can be spared leave 44.
  expect(bytes_ratio.least).toBeCloseTo(20 / 44, 10);
});

test('where not even he reaches them, the bar is most of what he spares, and says so', () => {
  const { load_ratio, ttft_ratio } = barsOf({ whole_bytes: 100, belady_bytes: 70, load_share: 0.3 });
  expect(load_ratio.least).toBeCloseTo(1 / 0.79, 10);
  expect(load_ratio.words).toBe(
    "ratio ≥ 1.27: 70 % of what Belady spares, who gives 1.43 (the paper's 1.80 is of all pools)",
  );
  expect(ttft_ratio.least).toBeCloseTo(1 / (1 - 0.3 * 0.21), 10);
});

test('Belady holds every bar of bytes, and who reuses nothing holds none', () => {
  const sizes = [3, 5, 2, 4];
  const trace = [0, 1, 2, 0, 3, 1, 0, 2, 3, 3, 1];
  const whole_bytes = trace.reduce((sum, model) => sum + sizes[model]!, 0);
  for (const pool_bytes of [5, 7, 10, 14]) {
    const belady_bytes = beladyLoads_bytes(trace, sizes, pool_bytes);
    const { least } = barsOf({ whole_bytes, belady_bytes, load_share: 1 }).bytes_ratio;
    expect(least).toBeLessThan(1);
    expect(belady_bytes / whole_bytes).toBeLessThan(least);
  }
});
