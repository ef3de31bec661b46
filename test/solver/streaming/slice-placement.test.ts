import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import {
  type PlacedRequest,
  placement_budgets,
  placeOnSlice,
  type SliceState,
} from '../../../solver/streaming/slice-placement.ts';

const gb = 1e9;
const links = new Map([
  ['chip-0', 400 * gb],
  ['chip-1', 400 * gb],
]);
const idle = (id: string, link = 'chip-0'): SliceState => ({
  id,
  link,
  in_use: [],
  kv_bytes_free: 4 * gb,
});
const llama = { model: 'llama', iteration_ms: 40, link_bytes: 16 * gb, tpot_ms: 100 };
const asked = (over: Partial<PlacedRequest> = {}): PlacedRequest => ({
  model: 'llama',
  kv_bytes: gb,
  tpot_ms: 100,
  on: () => ({ iteration_ms: 40, link_bytes: 16 * gb }),
  ...over,
});

describe('placement on slices of shared links', () => {
  it('keeps a link from being asked for more than it gives', () => {
    const first = { ...idle('a'), in_use: [llama] };
    const second = { ...idle('b'), in_use: [llama] };
    // A third model would ask the link of chip 0 for 480 GB/s.
    const verdict = placeOnSlice(
      asked({ model: 'qwen' }),
      [first, second, idle('c'), idle('d', 'chip-1')],
      links,
    );
    expect(verdict.slice).toBe('d');
  });

  it('puts a request where its model is in use: weights cross once for both', () => {
    const both = [
      { ...idle('a'), in_use: [llama] },
      { ...idle('b'), in_use: [{ ...llama, model: 'qwen' }] },
      idle('c'),
    ];
    const slow = asked({
      on: (slice) => ({ iteration_ms: slice === 'a' ? 50 : 40, link_bytes: 16 * gb }),
    });
    // Anywhere else there would be 480 GB/s on the link.
    expect(placeOnSlice(slow, both, links)).toMatchObject({ slice: 'a' });
  });

  it('exceeds budgets least where they hold nowhere, and waits only for KV', () => {
    const full = (id: string, models: number, link: string): SliceState => ({
      ...idle(id, link),
      in_use: Array.from({ length: models }, (_, index) => ({ ...llama, model: `other-${index}` })),
    });
    const verdict = placeOnSlice(asked(), [full('a', 4, 'chip-0'), full('b', 3, 'chip-1')], links);
    expect(verdict.slice).toBe('b');
    expect(verdict.load).toBeGreaterThan(1);
    const none = placeOnSlice(asked({ kv_bytes: 5 * gb }), [idle('a')], links);
    expect(none.slice).toBeUndefined();
    expect(none.because).toBe('no slice has memory for its KV now');
  });

  const states = fc.array(
    fc.record({
      link: fc.constantFrom('chip-0', 'chip-1'),
      kv_bytes_free: fc.constantFrom(0, 2 * gb),
      in_use: fc.array(
        fc.record({
          model: fc.constantFrom('llama', 'qwen', 'mixtral'),
          iteration_ms: fc.integer({ min: 5, max: 120 }),
          link_bytes: fc.integer({ min: 0, max: 30 }).map((size) => size * gb),
          tpot_ms: fc.constantFrom(50, 100, 200),
        }),
        { maxLength: 3 },
      ),
    }),
    { minLength: 1, maxLength: 6 },
  );

  it('is the best by its own measure, held against every slice', () => {
    fc.assert(
      fc.property(states, (drawn) => {
        const slices: SliceState[] = drawn.map((own, index) => ({
          ...own,
          id: String(index),
          in_use: own.in_use.filter(
            ({ model }, at) => own.in_use.findIndex((other) => other.model === model) === at,
          ),
        }));
        const verdict = placeOnSlice(asked(), slices, links);
        const each = slices
          .filter(({ kv_bytes_free }) => kv_bytes_free >= gb)
          .map((slice) => ({ slice, load: byHand(slice, slices) }));
        if (each.length === 0) {
          expect(verdict.slice).toBeUndefined();
          return;
        }
        const own = each.find(({ slice }) => slice.id === verdict.slice)!;
        expect(verdict.load).toBeCloseTo(own.load, 9);
        expect(own.load).toBeCloseTo(Math.min(...each.map(({ load }) => load)), 9);
      }),
    );
  });

  /** The sums of the whole machine with the request on that slice, written down once more. */
  function byHand(target: SliceState, slices: readonly SliceState[]): number {
    const joined = slices.map((slice) => {
      if (slice !== target) return slice;
      const known = slice.in_use.find(({ model }) => model === 'llama');
      const tpot_ms = Math.min(100, known?.tpot_ms ?? 100);
      const rest = slice.in_use.filter((own) => own !== known);
      return { ...slice, in_use: [...rest, { ...llama, tpot_ms }] };
    });
    const own = joined.find(({ id }) => id === target.id)!;
    const time = own.in_use.reduce((sum, { iteration_ms, tpot_ms }) => sum + iteration_ms / tpot_ms, 0);
    const bytes_per_s = joined
      .filter(({ link }) => link === target.link)
      .flatMap(({ in_use }) => in_use)
      .reduce((sum, { link_bytes, tpot_ms }) => sum + (1000 * link_bytes) / tpot_ms, 0);
    const link = bytes_per_s / links.get(target.link)!;
    const { time_share_max, link_share_max } = placement_budgets;
    return Math.max(time / time_share_max, link / link_share_max);
  }
});
