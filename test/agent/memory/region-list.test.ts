import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { type Region, RegionList } from '../../../agent/memory/region-list.ts';

const unit = 64;
const offsets = (list: RegionList<string>): [number, number, string | undefined][] =>
  [...list].map(({ offset, bytes, owner }) => [offset / unit, bytes / unit, owner]);

describe('a region list', () => {
  it('gives the beginning of the smallest free region that is large enough', () => {
    const list = new RegionList<string>(20 * unit, unit);
    const [a, , c] = ['a', 'b', 'c', 'd'].map((owner) => list.allocate(4 * unit, owner)!);
    list.free(a!);
    list.free(c!);
    list.allocate(3 * unit - 1, 'e');
    expect(offsets(list)).toEqual([
      [0, 3, 'e'],
      [3, 1, undefined],
      [4, 4, 'b'],
      [8, 4, undefined],
      [12, 4, 'd'],
      [16, 4, undefined],
    ]);
    expect(list.allocate(5 * unit, 'f')).toBeUndefined();
    expect(list.free_bytes).toBe(9 * unit);
    expect(list.fragmentation).toBeCloseTo(5 / 9, 12);
    list.verify();
  });

  it('begins at multiples of a larger alignment where that is asked for', () => {
    const list = new RegionList<string>(20 * unit, unit);
    list.allocate(3 * unit, 'a');
    list.allocate(4 * unit, 'b', 4 * unit);
    expect(offsets(list)).toEqual([
      [0, 3, 'a'],
      [3, 1, undefined],
      [4, 4, 'b'],
      [8, 12, undefined],
    ]);
    expect(list.allocate(12 * unit, 'c', 16 * unit)).toBeUndefined();
    list.verify();
  });

  it('makes one of free neighbours', () => {
    const list = new RegionList<string>(9 * unit, unit);
    const [a, b, c] = ['a', 'b', 'c'].map((owner) => list.allocate(3 * unit, owner)!);
    list.free(a!);
    list.free(c!);
    list.free(b!);
    expect(offsets(list)).toEqual([[0, 9, undefined]]);
    list.verify();
  });

  it('moves a region over a part of itself, and leaves it where the place is taken', () => {
    const list = new RegionList<string>(10 * unit, unit);
    list.allocate(2 * unit, 'a');
    const b = list.allocateAt(3 * unit, 4 * unit, 'b');
    const moved = list.move(b, 2 * unit);
    expect(offsets(list)).toEqual([
      [0, 2, 'a'],
      [2, 4, 'b'],
      [6, 4, undefined],
    ]);
    expect(() => list.move(moved, unit)).toThrow('are not free');
    list.verify();
    expect(offsets(list)[1]).toEqual([2, 4, 'b']);
  });

  it('refuses what is taken, free already, or not aligned', () => {
    const list = new RegionList<string>(4 * unit, unit);
    const a = list.allocateAt(unit, unit, 'a');
    expect(() => list.allocateAt(0, 2 * unit, 'b')).toThrow('are not free');
    expect(() => list.allocateAt(2 * unit + 1, unit, 'b')).toThrow('not aligned');
    list.free(a);
    expect(() => list.free(a)).toThrow('is free already');
    list.verify();
  });

  it('notices every kind of damage', () => {
    const damage: [string, (list: Region<string>[]) => void][] = [
      ['should begin at', ([, b]) => Object.assign(b!, { offset: 0 })],
      ['has 1 bytes', ([a]) => Object.assign(a!, { bytes: 1 })],
      ['bytes are free, and', ([a]) => Object.assign(a!, { owner: undefined })],
      ['are both free', ([, b]) => Object.assign(b!, { owner: undefined })],
      ['is not chained', ([a, b]) => Object.assign(b!, { previous: b ?? a })],
      ['cover', ([, b]) => Object.assign(b!, { next: undefined })],
    ];
    for (const [message, harm] of damage) {
      const list = new RegionList<string>(4 * unit, unit);
      list.allocate(unit, 'a');
      list.allocate(unit, 'b');
      harm([...list]);
      expect(() => list.verify(), message).toThrow(expect.objectContaining({ code: 'E_POOL_INTEGRITY' }));
      const said = (() => {
        try {
          list.verify();
        } catch (error) {
          return (error as { because: string[] }).because.join();
        }
        return '';
      })();
      expect(said).toContain(message);
    }
  });

  it('agrees with a map of single units over random histories', () => {
    const units = 40;
    const step = fc.record({
      act: fc.constantFrom('allocate', 'allocate', 'free', 'move'),
      size: fc.integer({ min: 1, max: 9 }),
      pick: fc.nat(),
    });
    fc.assert(
      fc.property(fc.array(step, { maxLength: 60 }), (steps) => {
        const list = new RegionList<string>(units * unit, unit);
        const map: (string | undefined)[] = new Array(units).fill(undefined);
        let live: Region<string>[] = [];
        const put = ({ offset, bytes, owner }: Region<string>, value: string | undefined): void => {
          for (let at = offset; at < offset + bytes; at += unit) {
            expect(map[at / unit]).toBe(value === undefined ? owner : undefined);
            map[at / unit] = value;
          }
        };
        const isFree = (from: number, size: number): boolean =>
          from + size <= units && map.slice(from, from + size).every((owner) => owner === undefined);
        steps.forEach(({ act, size, pick }, index) => {
          if (act === 'allocate') {
            const region = list.allocate(size * unit, `${index}`);
            const possible = map.some((_, from) => isFree(from, size));
            expect(region !== undefined).toBe(possible);
            if (!region) return;
            put(region, region.owner);
            live.push(region);
          } else if (live.length > 0) {
            const region = live[pick % live.length]!;
            const owner = region.owner!;
            live = live.filter((other) => other !== region);
            const from = region.offset / unit;
            const count = region.bytes / unit;
            put(region, undefined);
            if (act === 'free') list.free(region);
            else {
              const to = map.findIndex((_, place) => isFree(place, count));
              const moved = list.move(region, to * unit);
              expect(to).toBeLessThanOrEqual(from);
              put(moved, owner);
              live.push(moved);
            }
          }
          list.verify();
          expect(list.free_bytes / unit).toBe(map.filter((owner) => owner === undefined).length);
        });
      }),
      { numRuns: 150 },
    );
  });
});
