import { expect, test } from 'vitest';
import {
  areOperatorsMeasured,
  inMicroseconds,
  withMeasured,
} from '../../../agent/pipeline/operator-times.ts';

test('operators are measured early, and then in few batches', () => {
  const batches = Array.from({ length: 1000 }, (_, index) => index + 1).filter(areOperatorsMeasured);
  expect(batches).toEqual([4, 32, 256, 512, 768]);
});

test('what is known of operators follows what is measured, and nothing else', () => {
  expect(inMicroseconds([0.0012345678, 0])).toEqual([1235, 0]);
  expect(withMeasured([], [100, 50])).toEqual([100, 50]);
  const mean = withMeasured([100, 50], [200, 40]);
  expect(mean[0]).toBeCloseTo(130, 9);
  expect(mean[1]).toBeCloseTo(47, 9);
  expect(withMeasured([100, 50], [0, 0])).toEqual([100, 50]);
  expect(withMeasured([100, 50], [])).toEqual([100, 50]);
  expect(withMeasured([], [0, 0])).toEqual([]);
  // Cut anew.
  expect(withMeasured([100, 50], [30, 20, 10])).toEqual([30, 20, 10]);
});
