import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { bestHybrid, productTime_s } from '../../../solver/streaming/hybrid-product.ts';
import {
  countedRate_bytes_per_s,
  newLinkEstimate,
  observeTransfer,
  whySlow,
} from '../../../solver/streaming/link-estimate.ts';
import { divideLink, linkCapacity_bytes_per_s } from '../../../solver/streaming/shared-link.ts';

const demands = fc.array(fc.double({ min: 0, max: 500, noNaN: true }), { minLength: 1, maxLength: 7 });
const links = fc.record({
  bytes_per_s: fc.double({ min: 1, max: 450, noNaN: true }),
  loss_per_reader: fc.double({ min: 0, max: 0.2, noNaN: true }),
});

describe('a shared link', () => {
  it('gives each what it asks for, and else equal parts to those that ask for more', () => {
    const link = { bytes_per_s: 100, loss_per_reader: 0 };
    expect(divideLink(link, [10, 0, 30])).toEqual([10, 0, 30]);
    expect(divideLink(link, [10, 80, 200])).toEqual([10, 45, 45]);
  });

  it('is divided max-min fairly: nobody gains but from one who has no more', () => {
    fc.assert(
      fc.property(links, demands, (link, asked) => {
        const given = divideLink(link, asked);
        const readers = asked.filter((demand) => demand > 0).length;
        const total = given.reduce((sum, part) => sum + part, 0);
        const capacity = linkCapacity_bytes_per_s(link, readers);
        const wanted = asked.reduce((sum, demand) => sum + demand, 0);
        expect(total).toBeCloseTo(Math.min(capacity, wanted), 6);
        const most = Math.max(...given);
        for (const [index, part] of given.entries()) {
          expect(part).toBeLessThanOrEqual(asked[index]! + 1e-9);
          if (part < asked[index]! - 1e-9) expect(part).toBeGreaterThanOrEqual(most - 1e-9);
        }
      }),
    );
  });

  it('loses something with each further reader, and never more than half', () => {
    const link = { bytes_per_s: 400, loss_per_reader: 0.05 };
    expect(linkCapacity_bytes_per_s(link, 1)).toBe(400);
    expect(linkCapacity_bytes_per_s(link, 3)).toBe(360);
    expect(linkCapacity_bytes_per_s(link, 100)).toBe(200);
  });
});

describe('what a product counts on of a link', () => {
  const alone = newLinkEstimate(400e9);

  it('is its share of what the link gave at first, or what it gives now where that is less', () => {
    expect(countedRate_bytes_per_s(alone)).toBe(400e9);
    expect(countedRate_bytes_per_s(alone, 0.25)).toBe(100e9);
    const crowded = observeTransfer(alone, 50e9, 1);
    expect(countedRate_bytes_per_s(crowded, 0.9)).toBe(crowded.bytes_per_s);
    expect(countedRate_bytes_per_s(crowded, 0.1)).toBe(40e9);
  });

  it('leaves a neighbour its part wherever weights are read again to be done sooner, and else takes it', () => {
    // Of a slice whose own memory is no faster than the link, so that reading weights again pays.
    const slice = { flops_per_s: 500e12, memory_bytes_per_s: 400e9, processors: 16 };
    const read = (rows: number, share: number): { again: boolean; bytes_per_s: number } => {
      const product = { rows, columns: 8192, inner: 8192, bytes_per_weight: 2 };
      const counted = { ...slice, link_bytes_per_s: countedRate_bytes_per_s(alone, share) };
      const { alpha, tile_rows, cost } = bestHybrid(product, counted);
      // The link gives what is taken of it.
      const seconds = productTime_s(cost, { ...slice, link_bytes_per_s: alone.bytes_per_s });
      return { again: alpha < 1 && rows > tile_rows, bytes_per_s: cost.link_bytes / seconds };
    };
    const rows = [16, 64, 256, 300, 512, 700, 1024, 2048, 4096];
    const greedy = rows.map((count) => read(count, 1));
    expect(greedy.some(({ again, bytes_per_s }) => again && bytes_per_s > 0.9 * 400e9)).toBe(true);
    for (const { again, bytes_per_s } of rows.map((count) => read(count, 0.49)))
      if (again) expect(bytes_per_s).toBeLessThan(0.49 * 400e9 * (1 + 1e-9));
    // Weights that are read once have no other way.
    expect(read(16, 0.49)).toEqual({ again: false, bytes_per_s: 400e9 });
  });
});

describe('the estimate of a link', () => {
  const told = newLinkEstimate(100e9);
  const estimateAfter = (rates: readonly number[], from = told) =>
    rates.reduce((estimate, rate) => observeTransfer(estimate, rate, 1), from);

  it('falls at once and rises with patience', () => {
    const fell = estimateAfter([20e9, 20e9, 20e9]);
    expect(fell.bytes_per_s).toBeLessThan(35e9);
    const rose = estimateAfter([100e9, 100e9, 100e9], fell);
    expect(rose.bytes_per_s).toBeGreaterThan(fell.bytes_per_s);
    expect(rose.bytes_per_s).toBeLessThan(60e9);
    expect(estimateAfter(Array.from({ length: 100 }, () => 80e9)).bytes_per_s).toBeCloseTo(80e9, -8);
  });

  it('stays between what was measured and what was announced', () => {
    const rates = fc.array(fc.double({ min: 2 ** 20, max: 1e12, noNaN: true }), {
      minLength: 1,
      maxLength: 50,
    });
    fc.assert(
      fc.property(rates, (measured) => {
        const { bytes_per_s } = estimateAfter(measured);
        expect(bytes_per_s).toBeGreaterThanOrEqual(Math.min(100e9, ...measured) * (1 - 1e-9));
        expect(bytes_per_s).toBeLessThanOrEqual(Math.max(100e9, ...measured) * (1 + 1e-9));
      }),
    );
  });

  it('does not learn from what is too short to say anything', () => {
    expect(observeTransfer(told, 4096, 1)).toBe(told);
    expect(observeTransfer(told, 2 ** 30, 0)).toBe(told);
  });

  it('remembers the most that it was, but for a first transfer that was odd', () => {
    expect(estimateAfter(Array.from({ length: 7 }, () => 20e9)).reached_bytes_per_s).toBeUndefined();
    const alone = estimateAfter(Array.from({ length: 60 }, () => 20e9));
    expect(alone.reached_bytes_per_s! / 20e9).toBeCloseTo(1, 1);
    // A neighbour reads, and later it does not.
    const beside = estimateAfter(
      Array.from({ length: 60 }, () => 5e9),
      alone,
    );
    expect(beside.bytes_per_s / 5e9).toBeCloseTo(1, 1);
    expect(beside.reached_bytes_per_s).toBe(alone.reached_bytes_per_s);
    const faster = estimateAfter(
      Array.from({ length: 60 }, () => 40e9),
      beside,
    );
    expect(faster.reached_bytes_per_s).toBe(faster.bytes_per_s);
    expect(faster.bytes_per_s / 40e9).toBeCloseTo(1, 1);
  });

  it('says when a link is slower than it was said to be, once that is sure', () => {
    expect(whySlow(estimateAfter([1e9]))).toBeUndefined();
    expect(whySlow(estimateAfter(Array.from({ length: 20 }, () => 20e9)))).toBe(
      'the link gives 20.0 GB/s of the 100.0 GB/s that it gave at first',
    );
    const right = estimateAfter(Array.from({ length: 20 }, () => 90e9));
    expect(whySlow(right)).toBeUndefined();
    expect(whySlow(right, 170e9)).toBeUndefined();
    expect(whySlow(right, 200e9)).toBe('the link gives 90.0 GB/s of the 200.0 GB/s that the plan assumes');
  });
});
