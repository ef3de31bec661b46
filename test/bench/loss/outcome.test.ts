import { describe, expect, it } from 'vitest';
import {
  type Answer,
  lossRows,
  lossTable,
  outcomeOf,
  type Tally,
  tallyOf,
} from '../../../bench/loss/outcome.ts';

const whole: Answer = { text: 'abcdef', finished: true, pause_ms: 10 };

describe('an answer whose engine was lost', () => {
  it.each([
    ['whole', whole],
    ['broken', { ...whole, error: 'the connection ended' }],
    ['broken', { ...whole, text: 'abc', error: 'no token for 60 s' }],
    ['falsely complete', { ...whole, text: 'abc' }],
    ['falsely complete', { ...whole, text: '', finished: false }],
    // All of it has come, and nobody said that this was all.
    ['falsely complete', { ...whole, finished: false }],
    ['different', { ...whole, text: 'abcxef' }],
    ['different', { ...whole, text: 'abcdefg' }],
    ['different', { ...whole, text: 'bcdef', finished: false }],
  ] as const)('is %s: %j', (outcome, answer) => {
    expect(outcomeOf(answer, 'abcdef')).toBe(outcome);
  });
});

describe('answers of a loss', () => {
  const of = (system: string, answers: readonly Answer[]): Tally =>
    tallyOf(
      { system, loss: 'SIGKILL', on_lost: 2 },
      answers,
      answers.map(() => 'abcdef'),
    );
  const own = of('ours', [whole, { ...whole, pause_ms: 1500 }]);
  const other = of('theirs', [
    { ...whole, text: 'a', error: 'gone', pause_ms: 60_000 },
    { ...whole, text: 'ab' },
    { ...whole, text: 'x' },
  ]);

  it('are counted by what came of them', () => {
    expect(own).toEqual({
      system: 'ours',
      loss: 'SIGKILL',
      streams: 2,
      on_lost: 2,
      broken: 0,
      falsely_complete: 0,
      different: 0,
      pause_ms_max: 1500,
    });
    expect(other).toMatchObject({ broken: 1, falsely_complete: 1, different: 1, why: 'gone' });
  });

  it('hold for ours where none is broken, too short or different, each on its own', () => {
    expect(lossRows([own, other], 'ours').map(({ holds }) => holds)).toEqual([true, true, true, null, null]);
    const rows = lossRows([other, own], 'theirs');
    expect(rows.map(({ ours, holds }) => [ours, holds]).slice(0, 3)).toEqual([
      [1, false],
      [1, false],
      [1, false],
    ]);
    expect(rows.slice(3)).toMatchObject([
      { ours: 3, peer: 'ours', theirs: 0 },
      { ours: 60, unit: 's', theirs: 1.5 },
    ]);
  });

  it('are beside those of the same loss alone', () => {
    const elsewhere: Tally = { ...other, loss: 'SIGSTOP' };
    expect(lossRows([own, elsewhere], 'ours').filter(({ peer }) => peer !== '')).toEqual([]);
  });

  it('stand in a table', () => {
    expect(lossTable([own, other]).slice(2)).toEqual([
      '| SIGKILL | ours | 2 (2) | 0 | 0 | 0 | 1.5 s |',
      '| SIGKILL | theirs | 3 (2) | 1 | 1 | 1 | 60.0 s |',
    ]);
  });
});
