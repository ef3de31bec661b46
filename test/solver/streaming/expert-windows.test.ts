import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { planExpertWindows } from '../../../solver/streaming/expert-windows.ts';

describe('slots for experts', () => {
  it('are those of the ring, by layers of one kind', () => {
    const kinds = [{ layers: [0, 1, 2, 3], slot_bytes: 10 }];
    expect(planExpertWindows(kinds, 8, 200, 0)).toEqual([
      { kind: 0, stays: false, slots: 20, layers: [0, 1, 2, 3] },
    ]);
    // All experts of a layer may be needed at once.
    expect(planExpertWindows(kinds, 8, 79, 0)).toBeUndefined();
    expect(planExpertWindows(kinds, 8, 80, 0)![0]!.slots).toBe(8);
  });

  it('are those that stay alone, where they are enough for all', () => {
    const kinds = [{ layers: [0, 1, 2, 3, 4], slot_bytes: 10 }];
    const windows = planExpertWindows(kinds, 8, 0, 400)!;
    expect(windows.every(({ stays }) => stays)).toBe(true);
    expect(windows.map(({ slots }) => slots)).toEqual([20, 20]);
    expect(windows.flatMap(({ layers }) => layers).sort()).toEqual([0, 1, 2, 3, 4]);
  });

  it('hold every layer in one window of its kind, and lie in the room that there is', () => {
    const kind = fc.record({
      layers: fc.integer({ min: 1, max: 9 }),
      slot_bytes: fc.integer({ min: 1, max: 50 }),
    });
    fc.assert(
      fc.property(
        fc.array(kind, { minLength: 1, maxLength: 3 }),
        fc.integer({ min: 1, max: 16 }),
        fc.integer({ min: 0, max: 4000 }),
        fc.integer({ min: 0, max: 8000 }),
        (sizes, experts, ring_bytes, resident_bytes) => {
          let next = 0;
          const kinds = sizes.map(({ layers, slot_bytes }) => ({
            layers: Array.from({ length: layers }, () => next++),
            slot_bytes,
          }));
          const windows = planExpertWindows(kinds, experts, ring_bytes, resident_bytes);
          const least = kinds.reduce((sum, { slot_bytes }) => sum + experts * slot_bytes, 0);
          if (!windows) {
            expect(least).toBeGreaterThan(ring_bytes);
            return;
          }
          for (const { slots } of windows) {
            expect(slots).toBeGreaterThanOrEqual(experts);
            expect(slots).toBeLessThanOrEqual(4 * experts);
          }
          const taken = (staying: boolean): number =>
            windows.reduce(
              (sum, { stays, slots, kind: of }) =>
                sum + (stays === staying ? slots * kinds[of]!.slot_bytes : 0),
              0,
            );
          expect(taken(false)).toBeLessThanOrEqual(ring_bytes);
          expect(taken(true)).toBeLessThanOrEqual(resident_bytes);
          const held = windows.flatMap(({ kind: of, layers }) => layers.map((layer) => `${of} ${layer}`));
          const all = kinds.flatMap(({ layers }, of) => layers.map((layer) => `${of} ${layer}`));
          expect(held.sort()).toEqual(all.sort());
        },
      ),
    );
  });
});
