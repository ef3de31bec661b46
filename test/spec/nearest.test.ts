import fc from 'fast-check';
import { expect, it } from 'vitest';
import { nearest } from '../../spec/nearest.ts';

it.each([
  ['temprature', 'temperature'],
  ['tpo_p', 'top_p'],
  ['Top_P', 'top_p'],
  ['max_token', 'max_tokens'],
  ['elephant', undefined],
])('%s is near %s', (typed, near) => {
  expect(nearest(typed, ['temperature', 'top_p', 'max_tokens'])).toBe(near);
});

it('counts insertions, deletions, substitutions and swaps of neighbours, each as one', () => {
  const word = fc.string({ minLength: 6, maxLength: 40, unit: 'grapheme-ascii' });
  fc.assert(
    fc.property(
      word,
      fc.nat(),
      fc.constantFrom('insert', 'delete', 'replace', 'swap'),
      (text, place, edit) => {
        const at = place % (text.length - 1);
        const [left, one, two, right] = [text.slice(0, at), text[at]!, text[at + 1]!, text.slice(at + 2)];
        const edited = {
          insert: `${left}~${one}${two}${right}`,
          delete: `${left}${two}${right}`,
          replace: `${left}~${two}${right}`,
          swap: `${left}${two}${one}${right}`,
        }[edit];
        expect(nearest(edited, [text])).toBe(text);
      },
    ),
  );
});

it('a name of megabytes, typed or known, is near nothing and costs nothing', () => {
  const long = 'x'.repeat(4_000_000);
  const began_ms = performance.now();
  expect(nearest(long, ['temperature', long])).toBeUndefined();
  expect(nearest('temperature', [long, 'temperatur'])).toBe('temperatur');
  expect(performance.now() - began_ms).toBeLessThan(1000);
});
