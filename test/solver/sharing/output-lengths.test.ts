import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { type KeptLengths, OutputLengths } from '../../../solver/sharing/output-lengths.ts';

const model = 'm';
const answer = { model, reasoning: false };
const reasoned = { model, reasoning: true };

describe('what is kept of the lengths of answers', () => {
  it('is the whole history: who begins with it expects the same', () => {
    const seen = fc.array(
      fc.record({ reasoning: fc.boolean(), tokens: fc.integer({ min: 0, max: 20_000 }) }),
      {
        maxLength: 60,
      },
    );
    fc.assert(
      fc.property(seen, fc.nat({ max: 20_000 }), (answers, generated) => {
        const before = new OutputLengths();
        for (const { reasoning, tokens } of answers) before.observe({ model, reasoning }, tokens);
        const kept = before.kept(model);
        expect(kept === undefined).toBe(answers.length === 0);
        const after = new OutputLengths();
        if (kept) after.restore(model, JSON.parse(JSON.stringify(kept)) as KeptLengths);
        for (const key of [answer, reasoned])
          expect(after.expected(key, generated)).toBe(before.expected(key, generated));
      }),
    );
  });

  it('is bounded, however many answers there were and however long', () => {
    const lengths = new OutputLengths();
    for (let index = 0; index < 5000; index++) lengths.observe(answer, 3 ** (index % 20));
    const { answers, reasoning } = lengths.kept(model)!;
    expect(reasoning).toBeUndefined();
    expect(answers!.weights.length).toBeLessThanOrEqual(96);
    expect(answers!.weights.reduce((sum, weight) => sum + weight, 0)).toBeLessThanOrEqual(500);
    new OutputLengths().restore(model, lengths.kept(model)!);
  });

  it('gives way to what was seen since, and is forgotten with its model', () => {
    const before = new OutputLengths();
    for (let index = 0; index < 50; index++) before.observe(answer, 1000);
    const now = new OutputLengths();
    for (let index = 0; index < 50; index++) now.observe(answer, 10);
    now.restore(model, before.kept(model)!);
    expect(now.expected(answer)).toBeLessThan(50);
    now.forget(model);
    expect(now.kept(model)).toBeUndefined();
    now.restore(model, before.kept(model)!);
    expect(now.expected(answer)).toBeGreaterThan(900);
    expect(now.kept('another')).toBeUndefined();
  });

  it.each([
    ['more tokens than answers of that length have', { weights: [0, 0, 0, 0, 2], tokens: [0, 0, 0, 0, 400] }],
    ['more answers than are remembered', { weights: [600], tokens: [600] }],
    ['a negative weight', { weights: [-1], tokens: [0] }],
    ['not a number', { weights: [Number.NaN], tokens: [1] }],
    ['weights without tokens', { weights: [1], tokens: [] }],
    ['too many classes', { weights: Array(97).fill(0), tokens: Array(97).fill(0) }],
  ])('is refused where no answers could have left it: %s', (_, answers) => {
    expect(() => new OutputLengths().restore(model, { answers })).toThrow(RangeError);
  });
});
