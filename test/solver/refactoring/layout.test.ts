import { expect, test } from 'vitest';
import { planLayoutChange } from '../../../solver/refactoring/layout.ts';

const stage = (device: string, begin: number, end: number) => ({ device, begin, end });

test('a finer pipeline loads only what moves, and what stays is nobody’s transfer', () => {
  const from = [stage('a', 0, 10)];
  const to = [stage('a', 0, 4), stage('b', 4, 7), stage('c', 7, 10)];
  expect(planLayoutChange(from, to)).toEqual({
    loads: [
      { device: 'b', ranges: [{ begin: 4, end: 7 }] },
      { device: 'c', ranges: [{ begin: 7, end: 10 }] },
    ],
    releases: [{ device: 'a', ranges: [{ begin: 4, end: 10 }] }],
    transfers: [
      { from: 'a', to: 'b', begin: 4, end: 7 },
      { from: 'a', to: 'c', begin: 7, end: 10 },
    ],
  });
});

test('a stage that grows on both sides loads both', () => {
  const from = [stage('a', 0, 4), stage('b', 4, 7), stage('c', 7, 10)];
  expect(planLayoutChange(from, [stage('b', 0, 10)])).toMatchObject({
    loads: [
      {
        device: 'b',
        ranges: [
          { begin: 0, end: 4 },
          { begin: 7, end: 10 },
        ],
      },
    ],
    transfers: [
      { from: 'a', to: 'b', begin: 0, end: 4 },
      { from: 'c', to: 'b', begin: 7, end: 10 },
    ],
  });
});

test.each([
  ['a gap', [stage('a', 0, 4), stage('b', 5, 10)]],
  ['another model', [stage('a', 0, 9)]],
  ['a device twice', [stage('a', 0, 4), stage('a', 4, 10)]],
  ['nothing', []],
])('%s is no pipeline', (_, to) => {
  expect(() => planLayoutChange([stage('a', 0, 10)], to)).toThrow(RangeError);
});
