import { expect, test } from 'vitest';
import { turnWords } from '../../../cli/format/turns.ts';

test('who sleeps, who waits and who was refused stands behind the state of an engine that takes turns', () => {
  const quiet = { waiting: 0, waited: 3, refused: 0, change_ms: 2400 };
  expect(turnWords(quiet, false)).toBe('');
  expect(turnWords(quiet, true)).toBe(' (asleep, awake in 2 s)');
  expect(turnWords({ ...quiet, change_ms: 400 }, true)).toBe(' (asleep)');
  const busy = { ...quiet, waiting: 2, refused: 1 };
  expect(turnWords(busy, true)).toBe(' (asleep, awake in 2 s; 2 waiting for its turn; 1 refused for slo)');
  expect(turnWords(busy, false)).toBe(' (2 waiting for its turn; 1 refused for slo)');
});
