/** What is told of a link, from what loads say of themselves. */
import { expect, test } from 'vitest';
import { StreamMeter } from '../../../agent/streaming/stream-meter.ts';
import type { LoadLeg } from '../../../spec/engine-contract.ts';

const bytes = 2 ** 24;

/** Loads that came by one leg, at so many bytes a second. */
function observe(meter: StreamMeter, leg: LoadLeg['leg'], bytes_per_s: number, count: number): void {
  const legs = [{ leg, bytes, thread_ms: (1000 * bytes) / bytes_per_s }];
  for (let load = 0; load < count; load++) meter.observe({ legs }, bytes);
}

test('a host copy that is evicted: the rate falls to that of its file, and that is why', () => {
  const meter = new StreamMeter(1);
  observe(meter, 'cache', 20e9, 10);
  expect(meter.statistics.slow).toBeUndefined();
  observe(meter, 'disk', 1e9, 20);
  const { link, slow } = meter.statistics;
  expect(link!.bytes_per_s).toBeCloseTo(1e9, -8);
  expect(slow).toBe(
    'the link gives 1.0 GB/s of the 20.0 GB/s that it gave at first: of the time that its weights took last, 88 % went into reading their file, which host memory did not keep',
  );
  // It is there again.
  observe(meter, 'cache', 20e9, 60);
  expect(meter.statistics.link!.bytes_per_s).toBeGreaterThan(19e9);
  expect(meter.statistics.slow).toBeUndefined();
});

test('a link that is slower than it was is not taken for a file that is read', () => {
  const meter = new StreamMeter(1);
  observe(meter, 'upload', 20e9, 10);
  observe(meter, 'upload', 2e9, 20);
  expect(meter.statistics.slow).toBe('the link gives 2.0 GB/s of the 20.0 GB/s that it gave at first');
});

test('a file that was cold at first says nothing of what the link has', () => {
  const meter = new StreamMeter(1);
  observe(meter, 'disk', 0.5e9, 12);
  expect(meter.statistics.link!.bytes_per_s).toBeCloseTo(0.5e9, 0);
  expect(meter.statistics.slow).toBeUndefined();
  observe(meter, 'cache', 20e9, 1);
  expect(meter.statistics.link!.announced_bytes_per_s).toBeCloseTo(20e9, 0);
  observe(meter, 'cache', 4e9, 20);
  expect(meter.statistics.slow).toMatch(/^the link gives 4\.0 GB\/s of the 20\.0 GB\/s/);
});

test('where nobody tells memory and file apart, no file is blamed', () => {
  const meter = new StreamMeter(1);
  observe(meter, 'disk', 20e9, 10);
  observe(meter, 'disk', 1e9, 20);
  expect(meter.statistics.slow).toBe('the link gives 1.0 GB/s of the 20.0 GB/s that it gave at first');
});

test('a link that is slower from the beginning than the plan assumes is told as soon as that is sure', () => {
  const meter = new StreamMeter(1, 54e9);
  observe(meter, 'upload', 6e9, 4);
  expect(meter.statistics.slow).toBeUndefined();
  observe(meter, 'upload', 6e9, 8);
  expect(meter.statistics.slow).toBe('the link gives 6.0 GB/s of the 54.0 GB/s that the plan assumes');
  const fast = new StreamMeter(1, 54e9);
  observe(fast, 'upload', 40e9, 12);
  expect(fast.statistics.slow).toBeUndefined();
});
