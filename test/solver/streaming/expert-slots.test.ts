import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { type HeldExpert, slotsToTake } from '../../../solver/streaming/expert-slots.ts';

const chances = [0.5, 0.1, 0.3];

function question(
  holders: readonly (HeldExpert | undefined)[],
  count: number,
  pinned: readonly number[] = [],
) {
  return {
    holders,
    count,
    layer: 1,
    n_layer: 4,
    probability: ({ expert }: HeldExpert) => chances[expert]!,
    isPinned: (slot: number) => pinned.includes(slot),
  };
}

describe('slots that others give way in', () => {
  it('are free ones, then those of the experts that are chosen least', () => {
    const holders = [{ layer: 0, expert: 0 }, { layer: 2, expert: 1 }, undefined, { layer: 3, expert: 2 }];
    expect(slotsToTake(question(holders, 1))).toEqual([2]);
    expect(slotsToTake(question(holders, 2))).toEqual([1, 2]);
    expect(slotsToTake(question(holders, 3))).toEqual([1, 2, 3]);
    expect(slotsToTake(question(holders, 4, [0]))).toEqual([1, 2, 3]);
  });

  it('are of equals those whose layer comes last from now on', () => {
    const holders = [0, 1, 2, 3].map((layer) => ({ layer, expert: 0 }));
    // Layer 1 is computed: what it does not need itself waits for a round.
    expect(slotsToTake(question(holders, 1))).toEqual([1]);
    expect(slotsToTake(question(holders, 2))).toEqual([0, 1]);
    expect(slotsToTake(question(holders, 3))).toEqual([0, 1, 3]);
  });

  it('cost as few choices as any others would', () => {
    const held = fc.option(
      fc.record({ layer: fc.integer({ min: 0, max: 3 }), expert: fc.integer({ min: 0, max: 2 }) }),
      {
        nil: undefined,
      },
    );
    fc.assert(
      fc.property(
        fc.array(held, { minLength: 1, maxLength: 9 }),
        fc.integer({ min: 0, max: 9 }),
        fc.array(fc.integer({ min: 0, max: 8 }), { maxLength: 4 }),
        (holders, count, pinned) => {
          const taken = slotsToTake(question(holders, count, pinned));
          const open = holders.flatMap((_, slot) => (pinned.includes(slot) ? [] : [slot]));
          expect(taken.length).toBe(Math.min(count, open.length));
          expect(taken.every((slot) => open.includes(slot))).toBe(true);
          const lost = (slots: readonly number[]): number =>
            slots.reduce((sum, slot) => sum + (holders[slot] ? chances[holders[slot].expert]! : 0), 0);
          const best = Math.min(...subsets(open, taken.length).map(lost));
          expect(lost(taken)).toBeCloseTo(best, 9);
        },
      ),
    );
  });
});

function subsets(of: readonly number[], count: number): number[][] {
  if (count === 0) return [[]];
  return of.flatMap((first, index) =>
    subsets(of.slice(index + 1), count - 1).map((rest) => [first, ...rest]),
  );
}
