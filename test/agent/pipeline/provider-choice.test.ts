import { expect, it } from 'vitest';
import { ProviderChoice } from '../../../agent/pipeline/provider-choice.ts';

const minute_ms = 60_000;

it('is the best provider that has not just failed', () => {
  const choice = new ProviderChoice(['cxi', 'tcp']);
  expect(choice.next(0)).toBe('cxi');
  expect(choice.all(0)).toEqual(['cxi', 'tcp']);
  choice.leaveOut('cxi', 0);
  expect(choice.next(0)).toBe('tcp');
  expect(choice.all(0)).toEqual(['tcp']);
  choice.leaveOut('tcp', 1000);
  expect(choice.next(1000)).toBeUndefined();
  expect(choice.wait_ms(1000)).toBe(minute_ms - 1000);
  expect(choice.next(minute_ms)).toBe('cxi');
});

it('is tried again after a minute, then after twice as long each time, an hour at most', () => {
  const choice = new ProviderChoice(['tcp']);
  let now_ms = 0;
  const pauses_min = Array.from({ length: 9 }, () => {
    choice.leaveOut('tcp', now_ms);
    const wait_ms = choice.wait_ms(now_ms)!;
    expect(choice.next(now_ms + wait_ms - 1)).toBeUndefined();
    now_ms += wait_ms;
    expect(choice.next(now_ms)).toBe('tcp');
    return wait_ms / minute_ms;
  });
  expect(pauses_min).toEqual([1, 2, 4, 8, 16, 32, 60, 60, 60]);
});

it('is none where there is none, or a node has none of them', () => {
  expect(new ProviderChoice([]).next(0)).toBeUndefined();
  expect(new ProviderChoice([]).wait_ms(0)).toBeUndefined();
  const choice = new ProviderChoice(['cxi', 'verbs']);
  choice.giveUp('cxi');
  expect(choice.next(0)).toBe('verbs');
  choice.giveUp('verbs');
  expect(choice.next(1e12)).toBeUndefined();
  expect(choice.wait_ms(0)).toBeUndefined();
});
