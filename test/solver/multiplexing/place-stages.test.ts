import { describe, expect, it } from 'vitest';
import { Random } from '../../../solver/cp/random.ts';
import {
  type MultiplexedDevice,
  multiplexing_settings,
  multiplexingPenalty,
  type PlacedStage,
  placeStages,
} from '../../../solver/multiplexing/place-stages.ts';

const settings = { ...multiplexing_settings, imbalance_max: 0.5 };

/** Eq. 6 of a whole placement; undefined where a constraint is broken. */
function objectiveOf(
  stages: readonly PlacedStage[],
  devices: readonly MultiplexedDevice[],
  at: readonly number[],
) {
  const largest = Math.max(
    ...stages.flatMap((stage) => stage.rates_per_s.map((rate) => rate / stage.memory_bytes)),
  );
  for (const [device, { memory_bytes, models = [] }] of devices.entries()) {
    const here = stages.filter((_, stage) => at[stage] === device);
    if (here.reduce((sum, stage) => sum + stage.memory_bytes, 0) > memory_bytes) return undefined;
    const all = [...models, ...here.map(({ model }) => model)];
    if (new Set(all).size < all.length) return undefined;
  }
  for (const [i, a] of stages.entries())
    for (const [j, b] of stages.entries()) {
      if (a.rates_per_s[at[i]!] === 0) return undefined;
      if (a.model !== b.model) continue;
      if (a.rates_per_s[at[i]!]! / b.rates_per_s[at[j]!]! - 1 > settings.imbalance_max + 1e-12)
        return undefined;
    }
  let value = 0;
  for (const [stage, { rates_per_s, memory_bytes, cv }] of stages.entries()) {
    const device = at[stage]!;
    const shared = at.filter((other) => other === device).length + (devices[device]!.models?.length ?? 0) > 1;
    value += rates_per_s[device]! / memory_bytes / largest - (shared ? multiplexingPenalty(cv, settings) : 0);
  }
  return value;
}

function enumerate(
  stages: readonly PlacedStage[],
  devices: readonly MultiplexedDevice[],
): number | undefined {
  let best: number | undefined;
  const at: number[] = [];
  const visit = (): void => {
    if (at.length === stages.length) {
      const value = objectiveOf(stages, devices, at);
      if (value !== undefined && (best === undefined || value > best)) best = value;
      return;
    }
    for (let device = 0; device < devices.length; device++) {
      at.push(device);
      visit();
      at.pop();
    }
  };
  visit();
  return best;
}

describe('placement of stages on shared devices', () => {
  it('is the best of all on small questions, and keeps every constraint', () => {
    const random = new Random(7);
    let feasible = 0;
    for (let round = 0; round < 200; round++) {
      const devices = Array.from(
        { length: 2 + random.below(3) },
        (_, index): MultiplexedDevice => ({
          id: `d${index}`,
          memory_bytes: 4 + random.below(8),
          models: random.below(4) === 0 ? ['z'] : [],
        }),
      );
      const stages = Array.from(
        { length: 2 + random.below(4) },
        (_, index): PlacedStage => ({
          id: `s${index}`,
          model: ['a', 'b', 'c'][random.below(3)]!,
          memory_bytes: 1 + random.below(5),
          cv: random.below(5),
          rates_per_s: devices.map(() => random.below(5) / 2 + (random.below(6) === 0 ? 0 : 1)),
        }),
      );
      const best = enumerate(stages, devices);
      const found = placeStages(stages, devices, settings);
      expect(found.feasible).toBe(best !== undefined);
      if (!found.feasible || best === undefined) continue;
      feasible++;
      expect(found.optimal).toBe(true);
      expect(found.value).toBeCloseTo(best, 9);
      const at = found.devices.map((id) => devices.findIndex((device) => device.id === id));
      expect(objectiveOf(stages, devices, at)).toBeCloseTo(best, 9);
    }
    expect(feasible).toBeGreaterThan(60);
  });

  it('lets quiet models share a device, and keeps bursty ones apart (Eq. 9)', () => {
    const devices = [
      { id: 'fast', memory_bytes: 10 },
      { id: 'slow', memory_bytes: 10 },
    ];
    const place = (cv: number): readonly string[] => {
      const stages = ['a', 'b'].map((model) => ({
        id: model,
        model,
        memory_bytes: 2,
        cv,
        rates_per_s: [10, 5],
      }));
      const found = placeStages(stages, devices, { ...settings, penalty: 0.1 });
      return found.feasible ? [...found.devices].sort() : [];
    };
    expect(place(0)).toEqual(['fast', 'fast']);
    expect(place(4)).toEqual(['fast', 'slow']);
  });

  it('says what does not fit', () => {
    const stage = { id: 's0', model: 'a', memory_bytes: 9, cv: 1, rates_per_s: [1] };
    expect(placeStages([stage], [{ id: 'd', memory_bytes: 8 }])).toEqual({
      feasible: false,
      because: 'stage s0 (1 of 1) fits on no device',
    });
    const two = [
      { ...stage, memory_bytes: 1 },
      { ...stage, id: 's1', memory_bytes: 1 },
    ];
    expect(placeStages(two, [{ id: 'd', memory_bytes: 8 }])).toMatchObject({ feasible: false });
  });

  it('places 32 stages on 82 devices within its limit', () => {
    const random = new Random(2);
    const devices = Array.from({ length: 82 }, (_, index) => ({
      id: `d${index}`,
      memory_bytes: 10 + random.below(70),
    }));
    const stages = Array.from({ length: 32 }, (_, index) => ({
      id: `s${index}`,
      model: index < 16 ? 'a' : 'b',
      memory_bytes: 14,
      cv: 2,
      rates_per_s: devices.map(() => 0.9 + 0.1 * random.unit()),
    }));
    const found = placeStages(stages, devices, { ...settings, nodes_max: 5000 });
    expect(found.feasible).toBe(true);
  });
});
