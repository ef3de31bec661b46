import { expect, test } from 'vitest';
import { AnswerTimes } from '../../../agent/node/answer-times.ts';

test('an answer is expected to take what those took that were longer than it is already', () => {
  const times = new AnswerTimes();
  for (const took_ms of [100, 300, 1100]) times.pass(0).ended(took_ms, true);
  expect(times.answer_ms).toBe(500);
  const running = times.pass(1000);
  expect(times.left_ms(1000)).toEqual([500]);
  // Longer than two of three: by the third.
  expect(times.left_ms(1400)).toEqual([700]);
  // Longer than all: as long again.
  expect(times.left_ms(3000)).toEqual([2000]);
  running.ended(4000, false);
  expect(times.left_ms(4000)).toEqual([]);
  // Cut off by its client, it says nothing.
  expect(times.answer_ms).toBe(500);
});

test('first tokens count once for each stream, the newest for a tenth', () => {
  const times = new AnswerTimes();
  expect([times.first_token_ms, times.answer_ms, times.left_ms(0)]).toEqual([0, 0, []]);
  const first = times.pass(0);
  first.began(100);
  first.began(900);
  expect(times.first_token_ms).toBe(100);
  times.pass(1000).began(1200);
  expect(times.first_token_ms).toBe(110);
});

test('what an idle engine takes to a first token does not grow with the load', () => {
  const times = new AnswerTimes();
  expect(times.idle_first_token_ms).toBe(0);
  const busy = times.pass(0);
  // None ran alone to its first token yet: by the least.
  for (const took_ms of [900, 300, 700]) times.pass(0).began(took_ms);
  expect(times.idle_first_token_ms).toBe(300);
  busy.began(400);
  expect(times.idle_first_token_ms).toBe(400);
  for (let at = 0; at < 1000; at++) {
    const queued = times.pass(1000 * at);
    queued.began(1000 * at + 5000);
    queued.ended(1000 * at + 9000, true);
  }
  expect(times.first_token_ms).toBeCloseTo(5000);
  expect(times.idle_first_token_ms).toBe(400);
});
