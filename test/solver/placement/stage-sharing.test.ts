import { describe, expect, test } from 'vitest';
import { devicesToStartOn, spreadStages, withFinestStages } from '../../../solver/placement/stage-sharing.ts';
import type { UnitSpec } from '../../../spec/launch.ts';
import { unitOf } from '../../agent/support.ts';

function pipeline(name: string, stages: number, first_device: number, device_count: number): UnitSpec {
  return unitOf(
    {
      name,
      source: '/m.gguf',
      engine: 'native',
      parallel: { tensor: 1, pipeline: { stages_min: stages, stages_max: 4 } },
    },
    {
      unit: `${name}-0`,
      engine: 'native',
      device_kind: 'gpu',
      pipeline: stages,
      first_device,
      device_count,
      stages: Array.from({ length: stages }, (_, stage) => ({ begin: 3 * stage, end: 3 * stage + 3 })),
    },
  );
}
const whole = (name: string, first_device: number): UnitSpec =>
  unitOf(
    { name, source: '/m.gguf', engine: 'native' },
    { unit: `${name}-0`, engine: 'native', device_kind: 'gpu', first_device, device_count: 1 },
  );

/** Of each device of the job, how many stages and models begin on it. */
function loads(units: readonly UnitSpec[], count: number): number[] {
  const found = Array.from({ length: count }, () => 0);
  for (const { stages, stage_devices, first_device } of units)
    for (const [stage] of (stages ?? [0]).entries())
      found[first_device + (stage_devices?.[stage] ?? stage)]!++;
  return found;
}

describe('the stages that a pipeline begins with', () => {
  const finest = new Map(
    ['a-0', 'b-0'].map((unit) => [
      unit,
      Array.from({ length: 4 }, (_, at) => ({ begin: 2 * at, end: 2 * at + 2 })),
    ]),
  );
  const counts = (units: readonly UnitSpec[]): (number | undefined)[] =>
    withFinestStages(units, finest).map(({ stages }) => stages?.length);

  test('are the finest where its devices are its own, and those it is planned with where they are not', () => {
    expect(counts([pipeline('a', 2, 0, 4)])).toEqual([4]);
    expect(counts([pipeline('a', 2, 0, 4), pipeline('b', 2, 4, 4)])).toEqual([4, 4]);
    expect(counts([pipeline('a', 2, 0, 4), pipeline('b', 2, 3, 4)])).toEqual([2, 2]);
    expect(counts([pipeline('a', 2, 0, 4), whole('w', 3)])).toEqual([2, undefined]);
    expect(counts([pipeline('a', 2, 0, 4), whole('w', 4)])).toEqual([4, undefined]);
  });

  test('are those it is planned with where it has no finer ones', () => {
    expect(counts([pipeline('c', 2, 0, 4)])).toEqual([2]);
  });
});

describe('pipelines that have devices to choose from', () => {
  test('two of two stages on four devices leave each other alone', () => {
    const units = spreadStages([pipeline('a', 2, 0, 4), pipeline('b', 2, 0, 4)]);
    expect(loads(units, 4)).toEqual([1, 1, 1, 1]);
    expect(units.every(({ stage_devices = [] }) => stage_devices[0]! < stage_devices[1]!)).toBe(true);
  });

  test('one leaves a device alone that a whole model is on', () => {
    const units = spreadStages([whole('w', 0), pipeline('a', 2, 0, 4)]);
    expect(units[0]!.stage_devices).toBeUndefined();
    expect(units[1]!.stage_devices).not.toContain(0);
  });

  test('as few stages as possible share a device, by enumeration', () => {
    // Three of two stages on five devices, of ranges that differ: one device at least has two.
    const asked = [pipeline('a', 2, 0, 4), pipeline('b', 2, 1, 4), pipeline('c', 2, 0, 3)];
    const shared = (units: readonly UnitSpec[]): number =>
      loads(units, 5).reduce((sum, count) => sum + (count > 1 ? count : 0), 0);
    let best = Number.POSITIVE_INFINITY;
    const pairs = (count: number): number[][] =>
      Array.from({ length: count }, (_, a) => a).flatMap((a) =>
        Array.from({ length: count - a - 1 }, (_, b) => [a, a + 1 + b]),
      );
    for (const a of pairs(4))
      for (const b of pairs(4))
        for (const c of pairs(3))
          best = Math.min(
            best,
            shared(asked.map((unit, at) => ({ ...unit, stage_devices: [a, b, c][at]! }))),
          );
    expect(shared(spreadStages(asked))).toBe(best);
  });

  test('a pipeline alone, and one that has no devices to choose from, begin on the first ones', () => {
    const alone = [pipeline('a', 2, 0, 4)];
    expect(spreadStages(alone)).toEqual(alone);
    const full = [pipeline('a', 2, 0, 2), pipeline('b', 2, 0, 2)];
    expect(spreadStages(full)).toEqual(full);
  });
});

test('stages that start share where no device is left alone, and never with their own model', () => {
  const starting = { model: 'm', cv: 4, stage_bytes: [1e9, 1e9], stage_s: [0.01, 0.01] };
  expect(devicesToStartOn(starting, [[], [], []])).toEqual([
    [0, 1, 2],
    [0, 1, 2],
  ]);
  expect(devicesToStartOn(starting, [['x'], [], []])).toEqual([
    [1, 2],
    [1, 2],
  ]);
  const [one, other] = devicesToStartOn(starting, [['x'], [], ['m', 'y']]);
  expect([one, other].map(String).sort()).toEqual(['0', '1']);
});
