import { expect, test } from 'vitest';
import { HeldLayouts } from '../../../solver/refactoring/held-layouts.ts';

const whole = { begin: 0, end: 10 };
const half = { begin: 5, end: 10 };

test('a stage that was prepared begins, and the one before is held for the way back', () => {
  const held = new HeldLayouts(1, whole);
  held.prepare(half);
  expect(held.held).toEqual([whole, half]);
  expect(held.begin(2, half)).toBe(true);
  expect(held.serving).toEqual(half);
  expect(held.begin(3, whole)).toBe(true);
  held.release(whole);
  expect(held.held).toEqual([whole]);
  expect(held.epoch).toBe(3);
});

test('an epoch that is over neither begins nor computes', () => {
  const held = new HeldLayouts(4, whole);
  expect(held.begin(4, whole)).toBe(false);
  expect(held.begin(3, whole)).toBe(false);
  expect(held.take(3)).toBe('old_epoch');
  expect(held.take(4)).toBe('taken');
  expect(held.take(5)).toBe('unknown_epoch');
});

test('a stage that it does not hold does not begin', () => {
  const held = new HeldLayouts(1);
  expect(held.begin(2, half)).toBe(false);
  held.prepare(half);
  expect(held.begin(2, whole)).toBe(false);
  expect(held.take(1)).toBe('unknown_epoch');
});

test('what is not kept is let go', () => {
  const held = new HeldLayouts(1, whole);
  held.prepare(half);
  held.release(undefined);
  expect(held.held).toEqual([]);
});
