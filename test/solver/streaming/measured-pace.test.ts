import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { type MeasuredPace, observeStep, pace_ms } from '../../../solver/streaming/measured-pace.ts';

/** Weights of 40 MB, at 1 GB/s. */
const link = { step_bytes: 40e6, link_bytes_per_s: 1e9 };
const paceAfter = (
  steps: readonly (readonly [rows: number, ms: number])[],
  by: object = link,
): MeasuredPace =>
  steps.reduce<MeasuredPace | undefined>(
    (pace, [rows, compute_ms]) => observeStep(pace, { step_bytes: 40e6, ...by, rows, compute_ms }),
    undefined,
  )!;

describe('what an iteration takes', () => {
  it('is not known before one was seen', () => {
    expect(pace_ms(paceAfter([[0, 5]]), 1)).toBeUndefined();
    expect(pace_ms(paceAfter([[4, 0]]), 1)).toBeUndefined();
  });

  it('is the longer of its weights on the link and its arithmetic', () => {
    const pace = paceAfter([
      [1, 10],
      [256, 90],
    ]);
    expect(pace_ms(pace, 1)).toBe(40);
    expect(pace_ms(pace, 64)).toBe(40);
    expect(pace_ms(pace, 256)).toBe(90);
    // Half way between.
    expect(pace_ms(pace, 1 + 255 * 0.75)).toBeCloseTo(70);
  });

  it('beyond what was seen grows as much a row as there', () => {
    expect(pace_ms(paceAfter([[100, 50]]), 300)).toBeCloseTo(150);
  });

  it('follows the link, and keeps what it gave where nothing was measured', () => {
    const pace = paceAfter([[1, 10]]);
    const slower = observeStep(pace, { rows: 1, compute_ms: 10, step_bytes: 40e6, link_bytes_per_s: 5e8 });
    expect(pace_ms(slower, 1)).toBe(80);
    expect(pace_ms(observeStep(slower, { rows: 1, compute_ms: 10, step_bytes: 40e6 }), 1)).toBe(80);
  });

  it('follows arithmetic that changes, and does not leap with one iteration', () => {
    let pace = paceAfter([[8, 100]]);
    pace = observeStep(pace, { ...link, rows: 8, compute_ms: 500 });
    expect(pace_ms(pace, 8)).toBe(200);
    for (let step = 0; step < 30; step++) pace = observeStep(pace, { ...link, rows: 8, compute_ms: 500 });
    expect(pace_ms(pace, 8)).toBeGreaterThan(490);
  });

  it('never falls with the rows, whatever was seen', () => {
    const seen = fc.array(
      fc.tuple(fc.integer({ min: 1, max: 4096 }), fc.double({ min: 0.1, max: 500, noNaN: true })),
      {
        minLength: 1,
        maxLength: 40,
      },
    );
    fc.assert(
      fc.property(seen, (steps) => {
        const pace = paceAfter(steps);
        let before = 0;
        for (let rows = 1; rows <= 8192; rows += 37) {
          const ms = pace_ms(pace, rows)!;
          expect(ms).toBeGreaterThanOrEqual(before * (1 - 1e-9));
          before = ms;
        }
      }),
    );
  });
});
