import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { EventBoundary } from '../../../agent/node/event-boundary.ts';

function isBetweenAfter(pieces: readonly string[]): boolean {
  const boundary = new EventBoundary();
  for (const piece of pieces) boundary.push(Buffer.from(piece));
  return boundary.isBetween;
}

describe('whether a stream of events is between two of them', () => {
  it('is seen where it has not begun, and behind an empty line', () => {
    expect(isBetweenAfter([])).toBe(true);
    expect(isBetweenAfter(['data: 1\n\n'])).toBe(true);
    expect(isBetweenAfter(['data: 1\r\n\r\n'])).toBe(true);
    expect(isBetweenAfter(['data: 1\n'])).toBe(false);
    expect(isBetweenAfter(['data: 1\n\nd'])).toBe(false);
    expect(isBetweenAfter(['data: 1\n\n', 'data: 2'])).toBe(false);
  });

  it('does not depend on where its bytes are cut', () => {
    const pieces = fc.array(fc.string({ unit: fc.constantFrom('x', '\n', '\r'), maxLength: 5 }));
    fc.assert(
      fc.property(pieces, (rest) => {
        const all = ['x', ...rest];
        expect(isBetweenAfter(all)).toBe(/\n\r?\n$/.test(all.join('')));
      }),
    );
  });
});
