import { expect, test } from 'vitest';
import { devicesForStages, type StageDevice } from '../../../solver/placement/stage-layout.ts';

const cuts = (...begins: number[]) => begins.map((begin, index) => ({ begin, end: begins[index + 1] ?? 18 }));
const on = (names: string, held: { begin: number; end: number }[]): StageDevice<string>[] =>
  [...names].map((device, index) => (held[index] ? { device, held: held[index] } : { device }));

test('a stage that is split keeps its larger half, and the other goes to a device that has nothing', () => {
  expect(devicesForStages(cuts(0, 5, 9, 13), on('abcd', cuts(0, 9)))).toEqual(['a', 'c', 'd', 'b']);
});

test('stages that are merged lie where most of them was', () => {
  // Of [9, 18) c has five operators, d four.
  expect(devicesForStages(cuts(0, 9), on('abcd', cuts(0, 5, 9, 14)))).toEqual(['a', 'c']);
});

test('the first stage stays, also where another device has more of it', () => {
  expect(devicesForStages(cuts(0, 13), on('abc', cuts(0, 3, 13)))).toEqual(['a', 'c']);
});

test('devices that have nothing come before those that another stage leaves', () => {
  expect(devicesForStages(cuts(0, 1, 2), on('abcd', cuts(0, 2, 10)))).toEqual(['a', 'd', 'b']);
});

test('fewer devices than stages are no layout', () => {
  expect(devicesForStages(cuts(0, 5, 9), on('ab', cuts(0, 9)))).toBeUndefined();
});
