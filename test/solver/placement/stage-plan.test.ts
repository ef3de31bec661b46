import fc from 'fast-check';
import { expect, test } from 'vitest';
import { findDevice } from '../../../solver/catalog/devices.ts';
import { place } from '../../../solver/placement/placement.ts';
import { planStages, type StagePlan, type StagePlanQuestion } from '../../../solver/placement/stage-plan.ts';
import { defaultPlacementSettings, type PlacementModel } from '../../../spec/plan.ts';
import { ask, cpus, gguf, gpus } from './support.ts';

const gib = 2 ** 30;
const kinds = [{ kind: 'A100', count: 8, memory_bytes: 40 * gib, speed: 1 }];

/** A model of which the files say where weights lie, and nothing else is known. */
const model = (embedding: number, layers: number[], output: number, kv = 0): PlacementModel =>
  ({
    spec: { engine_args: [], kv_type: 'f16' },
    weight_bytes: embedding + output + layers.reduce((sum, bytes) => sum + bytes, 0),
    kv_bytes_per_token: kv * layers.length,
    summary: { n_layer: layers.length, weight_bytes_of: { embedding, layers, output } },
  }) as unknown as PlacementModel;

const question = (
  of: PlacementModel,
  stages: number,
  more: Partial<StagePlanQuestion> = {},
): StagePlanQuestion => ({
  model: of,
  shape: undefined,
  device: findDevice('A100'),
  precision: 'q4_0',
  weight_bytes: of.weight_bytes,
  rows: 4,
  context_tokens: 512,
  seen: undefined,
  stages,
  devices: kinds,
  margin_weight_fraction: 0,
  kv_tokens: 0,
  ...more,
});

const plan = (of: PlacementModel, stages: number, more: Partial<StagePlanQuestion> = {}): StagePlan => {
  const found = planStages(question(of, stages, more));
  if (!found.feasible) throw new Error(found.because);
  return found;
};

/** Times of layers as stages of one layer each measured them. */
const measured = (times: readonly number[]): StagePlanQuestion['seen'] =>
  times.map((seconds, layer) => ({ begin: 1 + 2 * layer, end: 3 + 2 * layer, compute_s: seconds }));

/** The least time of the slowest stage, by trying all. */
function least(times: readonly number[], stages: number, from = 0): number {
  const sum = (end: number): number => times.slice(from, end).reduce((total, each) => total + each, 0);
  if (stages === 1) return sum(times.length);
  let best = Number.POSITIVE_INFINITY;
  for (let to = from + 1; to <= times.length - (stages - 1); to++)
    best = Math.min(best, Math.max(sum(to), least(times, stages - 1, to)));
  return best;
}

test('stages cover the model, are cut between layers, and the slowest is as fast as it can be by measured times', () => {
  const sizes = fc.array(fc.integer({ min: 1, max: 50 }), { minLength: 2, maxLength: 8 });
  fc.assert(
    fc.property(sizes, fc.nat(), (times, chosen) => {
      const stages = 2 + (chosen % (times.length - 1));
      // Nothing else weighs: not the weights, and no head.
      const even = model(
        0,
        times.map(() => 1000),
        0,
      );
      const { cuts, partition } = plan(even, stages, { seen: measured(times) });
      expect(cuts).toHaveLength(stages);
      expect(cuts[0]!.begin).toBe(0);
      expect(cuts.at(-1)!.end).toBe(2 * times.length + 2);
      cuts.slice(1).forEach(({ begin }, index) => {
        expect(begin).toBe(cuts[index]!.end);
        // Before an attention.
        expect(begin % 2).toBe(1);
      });
      expect(partition.slowest_s).toBeCloseTo(least(times, stages), 6);
    }),
  );
});

test('a head that is the embedding is held where the logits are, too', () => {
  const { shares } = plan(model(30, [10, 10, 10, 10], 0), 2);
  expect(shares.map(({ weight_bytes }) => weight_bytes)).toEqual([50, 50]);
  expect(shares.map(({ layers }) => layers)).toEqual([2, 2]);
});

test('memory of the devices moves the cut, and what does not fit is said with the numbers', () => {
  const big = model(12 * gib, new Array<number>(6).fill(4 * gib), 6 * gib);
  const on = (memory: number) => ({ devices: [{ ...kinds[0]!, memory_bytes: memory * gib }] });
  expect(plan(big, 2, on(40)).cuts[0]).toEqual({ begin: 0, end: 7 });
  // Three layers beside the embedding take 24 GiB.
  expect(plan(big, 2, on(22)).cuts[0]).toEqual({ begin: 0, end: 5 });
  expect(planStages(question(big, 2, on(16)))).toMatchObject({ feasible: false, constraint: 'total_memory' });
});

test('KV of a stage counts, and so does the margin that grows with its weights', () => {
  const even = model(
    0,
    [4, 4, 4, 4].map((each) => each * gib),
    0,
    gib / 1024,
  );
  const on = { devices: [{ ...kinds[0]!, memory_bytes: 10 * gib }], kv_tokens: 1024 };
  // 8 GiB of weights and 2 of KV.
  expect(plan(even, 2, on).cuts[0]).toEqual({ begin: 0, end: 5 });
  expect(planStages(question(even, 2, { ...on, margin_weight_fraction: 0.05 })).feasible).toBe(false);
});

test('devices of different speed get stages of different size', () => {
  const even = model(0, new Array<number>(12).fill(1000), 0);
  const devices = [
    { kind: 'A100', count: 1, memory_bytes: 40 * gib, speed: 1 },
    { kind: 'H100', count: 1, memory_bytes: 80 * gib, speed: 2 },
  ];
  const { partition } = plan(even, 2, { devices });
  const layers = partition.stages.map(({ kind, begin, end }) => [kind, Math.floor((end - begin) / 2)]);
  expect(Object.fromEntries(layers)).toEqual({ A100: 4, H100: 8 });
});

test('stages on devices of two kinds lie in the order of these, and the slowest is as fast as it can be', () => {
  const sizes = fc.array(fc.integer({ min: 1, max: 50 }), { minLength: 3, maxLength: 8 });
  fc.assert(
    fc.property(sizes, fc.nat(), fc.integer({ min: 1, max: 4 }), (times, chosen, speed) => {
      const last = 1 + (chosen % (times.length - 2));
      const even = model(
        0,
        times.map(() => 1000),
        0,
      );
      const devices = [
        { kind: 'A100', count: 1, memory_bytes: gib, speed: 1 },
        { kind: 'H100', count: last, memory_bytes: gib, speed },
      ];
      const { partition } = plan(even, 1 + last, { devices, seen: measured(times) });
      expect(partition.stages.map(({ kind }) => kind)).toEqual([
        'A100',
        ...new Array<string>(last).fill('H100'),
      ]);
      // The first stage has so many layers.
      const paces = [...times.keys()].slice(1, times.length - last + 1).map((first) => {
        const own = times.slice(0, first).reduce((sum, each) => sum + each, 0);
        return Math.max(own, least(times.slice(first), last) / speed);
      });
      expect(partition.slowest_s).toBeCloseTo(Math.min(...paces), 6);
    }),
  );
});

test('a plan says where it cuts and why, and cuts by what stages measured once they have', () => {
  const asked = gguf('m', '8b', { parallel: { pipeline: 2 }, engine: 'native' });
  const offer = { ...cpus('Xeon-8480', 1, ['amx_int8']), cpus: 96 };
  const two = { ...offer, devices: { ...offer.devices, count: 2 } };
  const cutOf = (of: PlacementModel) => {
    const { launches, models, rejected } = place(ask([of], [two]));
    expect(rejected).toEqual([]);
    const [unit] = launches.flatMap(({ units }) => units);
    return { stages: unit!.stages, reason: models[0]!.reasons.find((each) => each.startsWith('cut into')) };
  };
  const first = cutOf(asked);
  expect(first.stages).toHaveLength(2);
  expect(first.reason).toMatch(
    /^cut into 2 stages, one device each: layers 0–\d+, \d+–31; a batch takes .* ms in each \(predicted for \d+ rows\); the largest has [\d.]+ MiB of weights$/,
  );
  // The second one is three times slower than it should be.
  const stages = first.stages!.map((cut, index) => ({ ...cut, compute_s: index === 0 ? 0.01 : 0.03 }));
  const seen = [{ node_kind: two.node_kind, engine: 'native' as const, tensor: 1, pipeline: 2, stages }];
  const after = cutOf({ ...asked, seen });
  expect(after.stages![0]!.end).toBeGreaterThan(first.stages![0]!.end + 8);
  expect(after.reason).toMatch(/\(measured by its stages\)/);
  // All that is slow about it is its head.
  const single = stages.map((stage) => {
    const operators_s = new Array<number>(stage.end - stage.begin).fill(0.01 / (stage.end - stage.begin));
    if (stage !== stages[0]) operators_s[operators_s.length - 1]! += 0.02;
    return { ...stage, operators_s };
  });
  const byOperator = cutOf({ ...asked, seen: [{ ...seen[0]!, stages: single }] });
  expect(byOperator.stages![0]!.end).toBeGreaterThan(after.stages![0]!.end + 8);
  expect(byOperator.reason).toMatch(/\(each operator measured by its stages\)/);
});

test('a plan says how stages on GPUs change, as on any other device', () => {
  const range = { pipeline: { stages_min: 2, stages_max: 4 } };
  const asked = gguf('m', '8b', { parallel: range, engine: 'native', devices: { kind: 'gpu' } });
  const changes = { settings: { ...defaultPlacementSettings, changes_stages: true } };
  const reasonOn = (emulated: 'cpu' | undefined): string => {
    const offer = gpus('A100', 40, 1, { engines: { native: { available: true } } });
    const devices = emulated ? { ...offer.devices, emulated } : offer.devices;
    const { models, rejected } = place(ask([asked], [{ ...offer, devices }], changes));
    expect(rejected).toEqual([]);
    return models[0]!.reasons.find((each) => each.startsWith('it begins with'))!;
  };
  expect(reasonOn(undefined)).toMatch(/^it begins with 4 stages, .* and has 2 when it is calm/);
  expect(reasonOn(undefined)).toBe(reasonOn('cpu'));
});

test('a pipeline that runs keeps its cut where another one would gain little', () => {
  const even = model(0, new Array<number>(8).fill(1000), 0);
  const seen = (first_s: number, second_s: number) => [
    { begin: 0, end: 9, compute_s: first_s },
    { begin: 9, end: 18, compute_s: second_s },
  ];
  const end = (first_s: number, second_s: number): number =>
    plan(even, 2, { seen: seen(first_s, second_s) }).cuts[0]!.end;
  expect(end(0.1, 0.105)).toBe(9);
  expect(end(0.1, 0.2)).toBe(11);
  // Five layers and three would take 1 % less.
  expect(end(0.1, 0.135)).toBe(9);
});

const begins = ({ cuts }: Pick<StagePlan, 'cuts'>): number[] => cuts.slice(1).map(({ begin }) => begin);

test('a pipeline that gets other stages has them split or merged, unless that is slower by more than a tenth', () => {
  const sizes = fc.array(fc.integer({ min: 1, max: 50 }), { minLength: 4, maxLength: 24 });
  const seen = { nested: 0, anew: 0 };
  fc.assert(
    fc.property(sizes, fc.nat(), fc.nat(), (times, one, other) => {
      const even = model(
        0,
        times.map(() => 1000),
        0,
      );
      const before = plan(even, 1 + (one % 4), { seen: measured(times) });
      const stages = 1 + (other % 4);
      const best = plan(even, stages, { seen: measured(times) });
      const after = plan(even, stages, { seen: measured(times), from: before.cuts });
      const [coarse, fine] = [before, after].map(begins).sort((a, b) => a.length - b.length);
      const isNested = coarse!.every((cut) => fine!.includes(cut));
      expect(after.cuts).toHaveLength(stages);
      expect(after.partition.slowest_s).toBeLessThanOrEqual(1.1 * best.partition.slowest_s * (1 + 1e-9));
      if (!isNested) expect(after.cuts).toEqual(best.cuts);
      seen[isNested ? 'nested' : 'anew']++;
    }),
    { seed: 7, numRuns: 300 },
  );
  expect(seen.nested).toBeGreaterThan(100);
  expect(seen.anew).toBeGreaterThan(20);
});

test('what is split is merged again, and a cut that is far from even is not kept', () => {
  const layers = (count: number, stages: number, from?: readonly number[]): number[] => {
    const even = model(0, new Array<number>(count).fill(1000), 0);
    const cuts = from && [0, ...from].map((layer) => ({ begin: layer === 0 ? 0 : 1 + 2 * layer, end: 0 }));
    const more: Partial<StagePlanQuestion> = { seen: measured(new Array<number>(count).fill(1)) };
    if (cuts) more.from = cuts;
    return begins(plan(even, stages, more)).map((begin) => (begin - 1) / 2);
  };
  expect(layers(80, 4)).toEqual([20, 40, 60]);
  const split = layers(80, 4, [41]);
  expect(split).toContain(41);
  expect(layers(80, 2, split)).toEqual([41]);
  // Eight layers where seven would do take an eighth longer.
  expect(layers(28, 4, [15])).toEqual([7, 14, 21]);
});
