import { expect, it } from 'vitest';
import { DeviceTime } from '../../gateway/device-time.ts';

function clockOf() {
  let now_ms = 1000;
  return {
    time: new DeviceTime(() => now_ms),
    pass: (ms: number) => {
      now_ms += ms;
    },
  };
}
const rounded = (shares_s: readonly number[]): number[] => shares_s.map((s) => Math.round(1e6 * s) / 1000);

it('is divided among those that are there', () => {
  const { time, pass } = clockOf();
  const first = time.begin();
  pass(10);
  const second = time.begin();
  pass(10);
  const shares = [first(), second()];
  expect(rounded(shares)).toEqual([15, 5]);
  expect(time.busy_s).toBeCloseTo(0.02, 9);
});

it('what is told late is divided as if it had been told in time', () => {
  const { time, pass } = clockOf();
  const first = time.begin();
  pass(10);
  // Of these 10 ms, 4 were its own, too.
  const late = time.begin(4);
  pass(6);
  const shares = [late(), first()];
  expect(rounded(shares)).toEqual([5, 11]);
  expect(time.busy_s).toBeCloseTo(0.016, 9);
});

it('a request that is told of when it has ended has had the device all the same', () => {
  const { time, pass } = clockOf();
  pass(100);
  const over = time.begin(3);
  expect(rounded([over()])).toEqual([3]);
  expect(time.busy_s).toBeCloseTo(0.003, 9);
  // The time before belongs to the one that had it.
  pass(1);
  expect(rounded([time.begin(3)()])).toEqual([1]);
  expect(time.busy_s).toBeCloseTo(0.004, 9);
});

it('nobody is given less than nothing', () => {
  const { time, pass } = clockOf();
  pass(100);
  const first = time.begin();
  pass(1);
  time.begin(50);
  expect(first()).toBe(0);
});
