/** How many replicas on idle nodes may be counted on: what is stated holds in a simulation of them. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { availability, guaranteeOf, type PresenceHistory } from '../../../solver/scavenging/guarantee.ts';
import { shareAtLeast } from '../../../solver/scavenging/preemption-history.ts';
import { exponential, seededRandom } from '../../../solver/simulator/random.ts';

const seen = (departures: number, serving_hours: number, back_s: number): PresenceHistory => ({
  departures,
  serving_hours,
  absences: departures,
  absent_s: departures * back_s,
});

describe('the guarantee', () => {
  it('is one departure in eight hours and five minutes away, where nothing was seen', () => {
    const nothing = seen(0, 0, 0);
    expect(availability(nothing)).toBeCloseTo((8 * 3600) / (8 * 3600 + 300), 9);
    expect(guaranteeOf(1, nothing)).toMatchObject({ replicas: 1, at_least: 1 });
  });

  it('states the most replicas that are there for 0.95 of the time, and the first whatever its share', () => {
    // Half an hour of serving, and ten minutes until others serve.
    const often = seen(400, 200, 600);
    const p = availability(often);
    expect(p).toBeCloseTo(0.75, 1);
    const { at_least, probability } = guaranteeOf(8, often);
    expect(probability).toBeGreaterThanOrEqual(0.95);
    expect(shareAtLeast(at_least + 1, 8, p)).toBeLessThan(0.95);
    expect(guaranteeOf(1, often)).toMatchObject({ at_least: 1, probability: p });
  });

  it('falls with departures and absences, and never promises more than there are', () =>
    fc.assert(
      fc.property(
        fc.integer({ min: 1, max: 64 }),
        fc.integer({ min: 0, max: 500 }),
        fc.double({ min: 0, max: 2000, noNaN: true }),
        fc.double({ min: 1, max: 50_000, noNaN: true }),
        (replicas, departures, hours, back_s) => {
          const history = seen(departures, hours, back_s);
          const { at_least, probability } = guaranteeOf(replicas, history);
          expect(at_least).toBeGreaterThanOrEqual(1);
          expect(at_least).toBeLessThanOrEqual(replicas);
          expect(probability).toBeGreaterThan(0);
          expect(probability).toBeLessThanOrEqual(1);
          const worse = { ...history, absent_s: history.absent_s + 3600 };
          expect(availability(worse)).toBeLessThan(availability(history));
          expect(guaranteeOf(replicas, worse).at_least).toBeLessThanOrEqual(at_least);
        },
      ),
    ));

  it('holds in a simulated month of replicas that leave and come back at random', () => {
    const random = seededRandom(7);
    const replicas = 6;
    const step_s = 60;
    const steps = (30 * 86_400) / step_s;
    const there = new Array<number>(steps).fill(0);
    let departures = 0;
    let serving_s = 0;
    let absent_s = 0;
    for (let replica = 0; replica < replicas; replica++)
      for (let at_s = 0; at_s < steps * step_s; ) {
        const serves_s = 7200 * exponential(random);
        const away_s = 900 * exponential(random);
        for (let step = Math.ceil(at_s / step_s); step < Math.min(steps, (at_s + serves_s) / step_s); step++)
          there[step]!++;
        at_s += serves_s + away_s;
        departures++;
        serving_s += serves_s;
        absent_s += away_s;
      }
    const { at_least, probability } = guaranteeOf(replicas, {
      departures,
      serving_hours: serving_s / 3600,
      absences: departures,
      absent_s,
    });
    const held = there.filter((count) => count >= at_least).length / steps;
    expect(at_least).toBe(4);
    expect(Math.abs(held - probability)).toBeLessThan(0.02);
  });
});
