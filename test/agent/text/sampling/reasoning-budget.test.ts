import { describe, expect, it } from 'vitest';
import { ReasoningMeter } from '../../../../agent/text/output/reasoning-meter.ts';
import { ReasoningBudget } from '../../../../agent/text/sampling/reasoning-budget.ts';

/** A token is an index into these; marks come whole and in pieces. */
const pieces = ['a', ' ', '\n', '<think>', '</think>', '</th', 'ink>', '<th', 'é'];
const bytesOf = (token: number): Uint8Array => Buffer.from(pieces[token]!);
const tokens = (...texts: string[]): number[] => texts.map((text) => pieces.indexOf(text));

function meterOf(opened: boolean, list: number[]): ReasoningMeter {
  const meter = new ReasoningMeter(opened, bytesOf);
  for (const token of list) meter.take(token);
  return meter;
}

describe('the tokens of a reasoning', () => {
  it.each<[string, boolean, string[], { tokens: number; inside: number; reasoning: boolean }]>([
    ['opened by the prompt', true, ['a', 'é'], { tokens: 2, inside: 2, reasoning: true }],
    ['closed', true, ['a', '</think>', 'a', 'a'], { tokens: 2, inside: 2, reasoning: false }],
    ['closed in pieces', true, ['a', '</th', 'ink>', 'a'], { tokens: 3, inside: 3, reasoning: false }],
    ['a mark that is none', true, ['</th', 'a', 'ink>'], { tokens: 3, inside: 3, reasoning: true }],
    ['opened by the model', false, ['\n', '<think>', 'a'], { tokens: 3, inside: 1, reasoning: true }],
    ['opened in pieces', false, ['<th', 'ink>', 'a'], { tokens: 3, inside: 1, reasoning: true }],
    ['no reasoning at all', false, ['a', '<think>', 'a'], { tokens: 0, inside: 0, reasoning: false }],
  ])('%s', (_, opened, texts, expected) => {
    expect(meterOf(opened, tokens(...texts))).toMatchObject(expected);
  });
});

describe('a budget', () => {
  const close_tokens = tokens('\n', '</th', 'ink>', '\n');
  const begin = (max_tokens: number, opened = true): ReasoningBudget =>
    new ReasoningBudget({ max_tokens, opened, close_tokens }, new ReasoningMeter(opened, bytesOf));
  /** What a model comes to say that would say `a` for ever. */
  const said = (budget: ReasoningBudget, count: number, before: number[] = []): number[] => {
    for (const token of before) budget.take(token);
    return [
      ...before,
      ...Array.from({ length: count - before.length }, () => {
        const token = budget.next ?? 0;
        budget.take(token);
        return token;
      }),
    ];
  };

  it('is followed by the closing mark, and then by nothing', () => {
    expect(said(begin(3), 8)).toEqual(tokens('a', 'a', 'a', '\n', '</th', 'ink>', 'a', 'a'));
    expect(said(begin(0), 5)).toEqual(tokens('\n', '</th', 'ink>', 'a', 'a'));
  });

  it('wherever an answer was cut, it goes on as it would have', () => {
    const whole = said(begin(3), 9);
    for (let cut = 0; cut < whole.length; cut++)
      expect(said(begin(3), 9, whole.slice(0, cut))).toEqual(whole);
  });

  it('that is not used up changes nothing; nor does one of a model that does not reason', () => {
    expect(said(begin(3), 6, tokens('a', '</think>'))).toEqual(tokens('a', '</think>', 'a', 'a', 'a', 'a'));
    expect(said(begin(0, false), 4)).toEqual(tokens('a', 'a', 'a', 'a'));
  });

  it('of a model that opens its reasoning itself counts from there', () => {
    expect(said(begin(1, false), 6, tokens('<think>'))).toEqual(
      tokens('<think>', 'a', '\n', '</th', 'ink>', 'a'),
    );
  });
});
