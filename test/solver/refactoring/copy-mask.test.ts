import { expect, test } from 'vitest';
import { CopyMask } from '../../../solver/refactoring/copy-mask.ts';

test('rows that were copied are not missing, later rows of the block are', () => {
  const mask = new CopyMask([[7, 3]]);
  const round = mask.missing();
  mask.wrote(7, 3, 5);
  mask.copied(round);
  expect(mask.validRows(7)).toBe(3);
  expect(mask.missing()).toMatchObject([{ block: 7, begin: 3, end: 5 }]);
});

test('a copy of what a block held before counts for nothing', () => {
  const mask = new CopyMask([[7, 16]]);
  const round = mask.missing();
  mask.freed(7);
  mask.wrote(7, 0, 2);
  mask.copied(round);
  expect(mask.validRows(7)).toBe(0);
  expect(mask.missing()).toMatchObject([{ block: 7, begin: 0, end: 2 }]);
});

test('rows that are written again are copied again, and a copy under way is not believed', () => {
  const mask = new CopyMask([[7, 10]]);
  mask.copied(mask.missing());
  mask.wrote(7, 10, 12);
  const round = mask.missing();
  mask.wrote(7, 4, 6);
  mask.copied(round);
  expect(mask.validRows(7)).toBe(4);
  expect(mask.missing()).toMatchObject([{ block: 7, begin: 4, end: 12 }]);
});

test('what was freed is nobody’s lack', () => {
  const mask = new CopyMask([
    [1, 16],
    [2, 4],
  ]);
  mask.freed(1);
  expect(mask.missing()).toMatchObject([{ block: 2, begin: 0, end: 4 }]);
});
