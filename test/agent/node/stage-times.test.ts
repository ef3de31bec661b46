import { expect, test } from 'vitest';
import { areNews, stageTimes } from '../../../agent/node/stage-times.ts';
import type { ModelLoad } from '../../../spec/agent-state.ts';

const loads = (...computed_us: number[]): ModelLoad[] => {
  const stages = computed_us.map((us, index) => ({ begin: 5 * index, end: 5 * index + 5, computed_us: us }));
  return [(stages.length > 0 ? { name: 'm', stages } : { name: 'm' }) as ModelLoad];
};

test('what stages take is told first, and again when a stage takes a quarter more or less', () => {
  expect(stageTimes(loads())).toBeUndefined();
  expect(areNews(undefined, stageTimes(loads()))).toBe(false);
  const told = stageTimes(loads(1000, 2000));
  expect(areNews(undefined, told)).toBe(true);
  expect(areNews(told, stageTimes(loads(1100, 2400)))).toBe(false);
  expect(areNews(told, stageTimes(loads(1000, 2600)))).toBe(true);
  expect(areNews(told, stageTimes(loads(1000, 1400)))).toBe(true);
  // Half a batch more or less that waits.
  const queue = (waiting: number) => ({ m: told!.m!.map((stage) => ({ ...stage, waiting })) });
  expect(areNews(told, queue(0.4))).toBe(false);
  expect(areNews(told, queue(0.5))).toBe(true);
  expect(areNews(queue(2), queue(1.7))).toBe(false);
  expect(areNews(queue(2), queue(0.2))).toBe(true);
  // Operators for the first time.
  const measured = { m: told!.m!.map((stage) => ({ ...stage, operators_us: [1, 2, 3, 4, 5] })) };
  expect(areNews(told, measured)).toBe(true);
  expect(areNews(measured, measured)).toBe(false);
  // Or an eighth of the time at others; batches that take longer as a whole are told by their stages.
  const operators = (...operators_us: number[]) => ({
    m: told!.m!.map((stage) => ({ ...stage, operators_us })),
  });
  expect(areNews(measured, operators(2, 4, 6, 8, 10))).toBe(false);
  expect(areNews(measured, operators(2, 2, 3, 4, 4))).toBe(false);
  expect(areNews(measured, operators(4, 2, 3, 4, 5))).toBe(true);
  // Cut anew.
  expect(areNews(told, stageTimes(loads(1000, 1000, 1000)))).toBe(true);
});
