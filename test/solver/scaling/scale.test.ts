import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { type ScalingQuestion, scale } from '../../../solver/scaling/scale.ts';
import { type ScalingWorld, simulateScaling } from './scaling-world.ts';

const minute = 60_000;
const settings = {
  replicas_min: 0,
  replicas_max: 8,
  target: 0.5,
  window_ms: 5 * minute,
  average_ms: 10_000,
};
const now_ms = 100 * minute;
/** The same demand for ten minutes, a sample every five seconds. */
const steady = (concurrency: number): ScalingQuestion['samples'] =>
  Array.from({ length: 121 }, (_, index) => ({ at_ms: now_ms - 5000 * (120 - index), concurrency }));
const ask = (facts: Partial<ScalingQuestion> = {}): ScalingQuestion => ({
  now_ms,
  replicas: 2,
  serving: 2,
  slots: 4,
  samples: steady(4),
  asked_ms: now_ms,
  changed_ms: 0,
  settings,
  ...facts,
});

describe('scaling', () => {
  it('has as many replicas as keep the share of their sequences that is in use at the target', () => {
    expect(scale(ask()).replicas).toBe(2);
    expect(scale(ask({ samples: steady(4.1) }))).toEqual({
      replicas: 3,
      because: '4.1 requests at once, and a replica computes 4',
    });
    expect(scale(ask({ samples: steady(400) })).replicas).toBe(8);
  });

  it('wakes for the first request, and sleeps when nobody has asked for a window', () => {
    const asleep = ask({ replicas: 0, serving: 0, samples: steady(0) });
    expect(scale(asleep)).toEqual({ replicas: 1, because: 'a request came' });
    const { asked_ms: _, ...never } = asleep;
    expect(scale(never).replicas).toBe(0);
    const idle = ask({ replicas: 1, serving: 1, samples: steady(0), asked_ms: now_ms - 5 * minute });
    expect(scale(idle)).toEqual({ replicas: 0, because: 'nobody has asked for 300 s' });
    expect(scale({ ...idle, asked_ms: now_ms - 5 * minute + 1 }).replicas).toBe(1);
    expect(scale({ ...idle, settings: { ...settings, replicas_min: 1 } }).replicas).toBe(1);
  });

  it('takes nothing away before demand was low for the whole window, nor soon after a change', () => {
    const less = ask({ replicas: 4, serving: 4, samples: steady(2) });
    expect(scale(less)).toEqual({ replicas: 2, because: 'at most 2.0 requests at once in 300 s' });
    const once = steady(2).map((sample) =>
      now_ms - sample.at_ms === 4 * minute || now_ms - sample.at_ms === 4 * minute + 5000
        ? { ...sample, concurrency: 8 }
        : sample,
    );
    expect(scale({ ...less, samples: once }).replicas).toBe(4);
    expect(scale({ ...less, samples: steady(2).slice(-30) }).replicas).toBe(4);
    expect(scale({ ...less, changed_ms: now_ms - 4 * minute }).replicas).toBe(4);
  });

  it('leaves a replica where the others would be close to the target without it', () => {
    // Two would do at the target, with no room left: 4 of 8 sequences.
    expect(scale(ask({ replicas: 3, serving: 3, samples: steady(4) })).replicas).toBe(3);
    expect(scale(ask({ replicas: 3, serving: 3, samples: steady(3.2) })).replicas).toBe(2);
  });

  it('adds one where first tokens are late though all replicas serve and are busy', () => {
    const late = ask({ samples: steady(3), ttft_ms: 900, slo_ttft_ms: 500 });
    expect(scale(late)).toEqual({
      replicas: 3,
      because: '3.0 requests at once, first tokens after 900 ms',
    });
    expect(scale({ ...late, serving: 1 }).replicas).toBe(2);
    expect(scale({ ...late, samples: steady(1.7) }).replicas).toBe(2);
    expect(scale({ ...late, ttft_ms: 400 }).replicas).toBe(2);
  });

  it('brings back what is always on', () => {
    const gone = ask({ replicas: 0, serving: 0, samples: [], settings: { ...settings, replicas_min: 2 } });
    const { asked_ms: _, ...never } = gone;
    expect(scale(never)).toEqual({ replicas: 2, because: 'so many are always on' });
  });

  it('stays within its bounds, is settled by its own answer, and never sleeps on a request', () => {
    const sample = fc.record({
      at_ms: fc.integer({ min: now_ms - 15 * minute, max: now_ms }),
      concurrency: fc.float({ min: 0, max: 100, noNaN: true }),
    });
    fc.assert(
      fc.property(
        fc.array(sample, { maxLength: 40 }),
        fc.integer({ min: 0, max: 12 }),
        fc.integer({ min: 0, max: 3 }),
        fc.integer({ min: 3, max: 9 }),
        fc.boolean(),
        (unsorted, replicas, replicas_min, replicas_max, asked) => {
          const samples = [...unsorted].sort((a, b) => a.at_ms - b.at_ms);
          const { asked_ms: _, ...base } = ask({
            samples,
            replicas,
            serving: replicas,
            settings: { ...settings, replicas_min, replicas_max },
          });
          const question = { ...base, ...(asked ? { asked_ms: now_ms } : {}) };
          const decided = scale(question);
          if (decided.replicas !== replicas) {
            expect(decided.replicas).toBeGreaterThanOrEqual(replicas_min);
            expect(decided.replicas).toBeLessThanOrEqual(replicas_max);
          }
          if (asked) expect(decided.replicas).toBeGreaterThanOrEqual(1);
          const again = scale({
            ...question,
            replicas: decided.replicas,
            serving: decided.replicas,
            changed_ms: now_ms,
          });
          expect(again.replicas).toBe(decided.replicas);
        },
      ),
    );
  });
});

describe('a simulated day', () => {
  const hour_s = 3600;
  const world: ScalingWorld = {
    seed: 3,
    seconds: 24 * hour_s,
    rate_per_s: (at_s) => 0.5 * (1 + Math.sin((2 * Math.PI * at_s) / (24 * hour_s))) + 0.02,
    rate_max_per_s: 1.1,
    service_s: 20,
    slots: 4,
    lead_s: 60,
    tick_s: 5,
    settings: { ...settings, replicas_min: 1, replicas_max: 12, target: 0.7 },
  };
  const late = ({ waits_s }: { waits_s: number[] }): number =>
    waits_s.filter((wait_s) => wait_s > 5).length / waits_s.length;

  it('follows demand: few wait, and far fewer replica-hours than the peak needs all day', () => {
    const outcome = simulateScaling(world);
    const most = Math.max(...outcome.changes.map(({ replicas }) => replicas));
    expect(late(outcome)).toBeLessThan(0.03);
    expect(outcome.replica_s).toBeLessThan(0.7 * most * world.seconds);
    // Less than the mean demand could not do: λ · service / slots replicas.
    expect(outcome.replica_s).toBeGreaterThan((0.52 * world.service_s * world.seconds) / world.slots);
    // No flapping: at most one change in five minutes downwards, none within a window of the one before.
    const downs = outcome.changes.filter(
      ({ replicas }, index) => replicas < (outcome.changes[index - 1]?.replicas ?? 1),
    );
    for (const { at_s } of downs) {
      const before = outcome.changes.filter((change) => change.at_s < at_s).at(-1);
      expect(at_s - (before?.at_s ?? 0)).toBeGreaterThanOrEqual(300);
    }
  });

  it('a longer window and a lower target keep more waits short, and cost more', () => {
    const eager = simulateScaling({ ...world, settings: { ...world.settings, window_ms: 30_000 } });
    const patient = simulateScaling({ ...world, settings: { ...world.settings, window_ms: 30 * minute } });
    expect(late(patient)).toBeLessThan(late(eager));
    expect(patient.replica_s).toBeGreaterThan(eager.replica_s);
  });

  it('sleeps between requests of a model that is asked rarely', () => {
    const rare = {
      ...world,
      rate_per_s: () => 1 / 3600,
      rate_max_per_s: 1 / 3600,
      settings: { ...world.settings, replicas_min: 0 },
    };
    const outcome = simulateScaling(rare);
    expect(outcome.changes.some(({ replicas }) => replicas === 0)).toBe(true);
    expect(outcome.replica_s).toBeLessThan(0.3 * rare.seconds);
    // Each waits for a start at most.
    expect(Math.max(...outcome.waits_s)).toBeLessThanOrEqual(rare.lead_s + 2 * rare.tick_s);
  });
});
