/** How long a job has from its warning on, by Slurm's clock, the node's, and the warning itself. */
import { expect, test } from 'vitest';
import { walltimeLeft_ms } from '../../../agent/node/walltime.ts';

const now_ms = Date.parse('2026-01-01T00:00:00Z');
const left = (left_s: number | undefined, warned_before_s?: number): number =>
  walltimeLeft_ms({
    now_ms,
    ...(left_s === undefined ? {} : { job_end_time_ms: now_ms + 1000 * left_s }),
    ...(warned_before_s === undefined ? {} : { warned_before_s }),
  }) / 1000;

test('by the clock, which also knows of a warning that came early', () => {
  expect(left(120, 120)).toBe(120);
  expect(left(175, 120)).toBe(175);
  // Clocks of a cluster differ by seconds.
  expect(left(117, 120)).toBe(117);
});

test('by the warning, where the clock is an hour wrong or Slurm tells no end', () => {
  expect(left(120 - 3600, 120)).toBe(120);
  expect(left(120 + 3600, 120)).toBe(120);
  expect(left(undefined, 120)).toBe(120);
});

test('by the clock, where nobody said when the warning comes', () => {
  expect(left(3600)).toBe(3600);
  expect(left(undefined)).toBe(0);
});
