import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { mayBring, planRing } from '../../../solver/streaming/ring-plan.ts';

describe('parts of a model in a ring', () => {
  it('lie behind one another, and over those that were computed before', () => {
    expect(planRing([40, 40, 40, 40], 100, 1)).toEqual([
      { offset: 0, distance: 2 },
      { offset: 40, distance: 2 },
      { offset: 0, distance: 2 },
      { offset: 40, distance: 2 },
    ]);
    expect(planRing([60, 60], 100, 1)!.map(({ distance }) => distance)).toEqual([1, 1]);
    expect(planRing([10, 120], 100, 1)).toBeUndefined();
  });

  it('are never written over before they were computed, and all come in the end', () => {
    fc.assert(
      fc.property(
        fc.array(fc.integer({ min: 1, max: 60 }), { minLength: 1, maxLength: 12 }),
        fc.integer({ min: 60, max: 300 }),
        fc.constantFrom(1, 16),
        fc.infiniteStream(fc.boolean()),
        (sizes, ring_bytes, alignment, coins) => {
          const parts = planRing(sizes, ring_bytes, alignment)!;
          if (!parts) return;
          /** What lies in each byte of the ring: the number of the part that was brought last. */
          const ring = new Int32Array(ring_bytes).fill(-1);
          let [brought, computed] = [0, 0];
          while (computed < 4 * sizes.length) {
            const may = mayBring(parts, brought, computed);
            const can = brought > computed;
            // Something always goes on.
            expect(may || can).toBe(true);
            if (may && (!can || coins.next().value)) {
              const { offset } = parts[brought % sizes.length]!;
              ring.fill(brought, offset, offset + sizes[brought % sizes.length]!);
              brought++;
            } else {
              const { offset } = parts[computed % sizes.length]!;
              const own = ring.subarray(offset, offset + sizes[computed % sizes.length]!);
              expect(own.every((number) => number === computed)).toBe(true);
              computed++;
            }
          }
        },
      ),
    );
  });
});
