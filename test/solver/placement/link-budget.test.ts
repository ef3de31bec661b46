/** Streamed models over devices that share links: where they run, and what of a link is left for one of them. */
import { describe, expect, it } from 'vitest';
import { findDevice } from '../../../solver/catalog/devices.ts';
import { migSlice, slicesOfGpu } from '../../../solver/catalog/mig.ts';
import { comparableLaunch } from '../../../solver/placement/comparable-launch.ts';
import {
  leastLoaded,
  linkOf,
  linkShare,
  type StreamedDemand,
} from '../../../solver/placement/link-budget.ts';
import { place } from '../../../solver/placement/placement.ts';
import { hostLink } from '../../../solver/streaming/host-link.ts';
import type { NodeKindOffer } from '../../../spec/plan.ts';
import { ask, gguf, gpus, planOf } from './support.ts';

const gib = 2 ** 30;
const native = { engines: { native: { available: true } } } as const;
/** So many slices of an eighth of a GH200, seven to a GPU. */
const slices = (count: number, nodes: number): NodeKindOffer =>
  slicesOf('GH200-96GB 1g.12gb', 12, count, nodes);
/** Nodes with one GH200 in halves, which read nearly all that the link gives, and have memory for few layers. */
const half = 'GH200-96GB 3g.48gb';
const halves = (nodes: number): NodeKindOffer => slicesOf(half, 12, 2, nodes);

function slicesOf(model: string, memory_gib: number, count: number, nodes: number): NodeKindOffer {
  const devices = { kind: 'mig', model, count, memory_bytes: memory_gib * gib } as const;
  return { ...gpus('mig', memory_gib, nodes, { ...native, count }), devices };
}
const streamed = (name: string, rate_per_s: number, more: object = {}) =>
  gguf(name, '70b', {
    weights: 'streamed',
    context_tokens: 2048,
    max_sequences: 1,
    workload: { rate_per_s, input_tokens: 100, output_tokens: 100 },
    ...more,
  });

describe('slices of a GPU', () => {
  it('are as many as it has compute and memory for', () => {
    expect(slicesOfGpu('GH200-96GB 1g.12gb')).toBe(7);
    expect(slicesOfGpu('GH200-96GB 3g.48gb')).toBe(2);
    expect(slicesOfGpu('A100-SXM4-40GB 7g.40gb')).toBe(1);
    expect(slicesOfGpu('A100-40GB')).toBeUndefined();
  });

  it('read over one link, and whole GPUs over their own', () => {
    expect([0, 6, 7].map((index) => linkOf(slices(14, 1), index))).toEqual(['GPU 0', 'GPU 0', 'GPU 1']);
    expect([0, 1].map((index) => linkOf(gpus('A100-80GB', 80, 1), index))).toEqual(['device 0', 'device 1']);
  });
});

describe('budgets', () => {
  const demand = (model: string, steps_per_s: number): StreamedDemand => ({
    model,
    step_bytes: 10e9,
    step_s: 0.1,
    steps_per_s,
    link_bytes_per_s: 100e9,
    link_capacity_bytes_per_s: 100e9,
  });
  const on = (index: number, steps_per_s: number, time = 0) => ({
    index,
    time,
    streamed: steps_per_s > 0 ? [demand(`on-${index}`, steps_per_s)] : [],
  });
  const whole = gpus('A100-80GB', 80, 1);
  const choice = (strict: boolean, ...all: ReturnType<typeof on>[]) =>
    leastLoaded(
      demand('m', 1),
      all.map(({ index }) => index),
      all,
      whole,
      { strict },
    );

  it('choose the device that has most left, of its time and of its link', () => {
    expect(choice(true, on(0, 4), on(1, 2), on(2, 3))).toBe(1);
    expect(choice(true, on(0, 2), on(1, 0, 0.5), on(2, 3))).toBe(0);
    expect(choice(true, on(0, 0), on(1, 0))).toBe(0);
  });

  it('refuse what none of them holds, unless it must go somewhere', () => {
    expect(choice(true, on(0, 9), on(1, 8.5))).toBeUndefined();
    expect(choice(false, on(0, 9), on(1, 8.5))).toBe(1);
  });

  it('leave of a link what others do not read, and half of it at least beside one', () => {
    const share = (steps_per_s: number) =>
      linkShare(demand('m', 1), 0, [on(0, 1), on(1, steps_per_s)], slices(7, 1));
    expect(share(0)).toBe(1);
    // Three tenths are read, and two hundredths lost where two read.
    expect(share(3)).toBeCloseTo(0.68, 9);
    expect(share(50)).toBeCloseTo(0.49, 9);
    expect(linkShare(demand('m', 1), 0, [on(0, 1), on(1, 50)], whole)).toBe(1);
  });

  it('leave small slices what they can read, until several of them fill the link', () => {
    const narrow = { ...demand('m', 1), link_capacity_bytes_per_s: 400e9 };
    const share = (others: number) => {
      const busy = Array.from({ length: others }, (_, at) => on(at + 1, 10));
      return linkShare(narrow, 0, [on(0, 1), ...busy], slices(7, 1));
    };
    expect([0, 1, 2].map(share)).toEqual([1, 1, 1]);
    // Four hundred, less two hundredths for each further reader, in equal parts.
    expect(share(3)).toBeCloseTo(0.94, 9);
    expect(share(6)).toBeCloseTo((4 * 0.88) / 7, 9);
  });
});

describe('what a device reads of host memory', () => {
  const of = (model: string) => hostLink(migSlice(model)?.device ?? findDevice(model));

  it('is less than its link gives where it is a small slice and the link is fast', () => {
    const whole_bytes_per_s = 0.85 * 450e9;
    expect(of('GH200')).toMatchObject({
      bytes_per_s: whole_bytes_per_s,
      capacity_bytes_per_s: whole_bytes_per_s,
    });
    const small = of('GH200-96GB 1g.12gb');
    expect(small.bytes_per_s).toBeCloseTo((2 / 7) * whole_bytes_per_s, 0);
    expect(small.capacity_bytes_per_s).toBe(whole_bytes_per_s);
    expect(of('GH200-96GB 7g.96gb').bytes_per_s).toBe(whole_bytes_per_s);
    // PCIe is slow enough for one slice to fill.
    expect(of('H100-80GB 1g.10gb').bytes_per_s).toBe(of('H100').bytes_per_s);
  });
});

describe('a plan', () => {
  it('puts a streamed model beside the one that asks its device and link least', () => {
    const { launches } = place(
      ask(
        [streamed('a', 0.0026), streamed('b', 0.0013), streamed('c', 0.0003)],
        [gpus('A100-80GB', 6, 1, { ...native, count: 2 })],
      ),
    );
    const device = Object.fromEntries(
      launches.flatMap(({ units }) => units.map(({ model, first_device }) => [model.name, first_device])),
    );
    expect(device).toEqual({ a: 0, b: 1, c: 1 });
  });

  it('divides models over GPUs whose links they would crowd, and says what is left where there is one', () => {
    const busy = ['a', 'b'].map((name) => streamed(name, 0.05));
    const placed = (nodes: number) => place(ask(busy, [halves(nodes)]));
    expect(placed(2).launches).toHaveLength(2);
    expect(planOf(placed(2), 'a').reasons.join()).not.toMatch(/share a link/);
    const one = placed(1);
    expect(one.launches).toHaveLength(1);
    const shares = ({ launches }: typeof one) =>
      launches.flatMap(({ units }) => units.map(({ memory }) => memory!.link_share));
    expect(shares(placed(2))).toEqual([undefined, undefined]);
    const alone = hostLink(migSlice(half)!.device);
    const left = (0.49 * alone.capacity_bytes_per_s) / alone.bytes_per_s;
    expect(shares(one)).toEqual([expect.closeTo(left, 9), expect.closeTo(left, 9)]);
    // Another share, by what neighbours are asked, is no matter of a job that runs; nor one that knew no rate.
    const [launch] = one.launches;
    const units = launch!.units.map((unit) => {
      const { link_bytes_per_s, ...memory } = unit.memory!;
      expect(link_bytes_per_s).toBe(alone.bytes_per_s);
      return { ...unit, memory: { ...memory, link_share: 0.7 } };
    });
    expect(comparableLaunch({ ...launch!, units })).toEqual(comparableLaunch(launch!));
    expect(planOf(one, 'a').reasons.join()).toMatch(
      /slices of GH200-96GB 3g\.48gb that stream share a link \(NVLink-C2C\): one of them has 57 % of what it would read alone, 190 GB\/s/,
    );
    const tpot_ms = (placement: typeof one) => planOf(placement, 'a').groups[0]!.predicted!.tpot_ms;
    expect(tpot_ms(one)).toBeGreaterThan(1.2 * tpot_ms(placed(2)));
    // What was measured has the part of others.
    const seen = [
      { node_kind: 'mig', engine: 'native' as const, tensor: 1, pipeline: 1, link_bytes_per_s: 380e9 },
    ];
    const measured = place(
      ask(
        busy.map((model) => ({ ...model, seen })),
        [halves(1)],
      ),
    );
    expect(planOf(measured, 'a').reasons.join()).not.toMatch(/share a link/);
  });

  it('is the same once the link was measured, whose neighbours have had their part then', () => {
    const two = ['a', 'b'].map((name) => streamed(name, 0.03));
    const seen = [
      { node_kind: 'mig', engine: 'native' as const, tensor: 1, pipeline: 1, link_bytes_per_s: 190e9 },
    ];
    const plan = (models: typeof two) => place(ask(models, [halves(2)]));
    const [assumed, measured] = [plan(two), plan(two.map((model) => ({ ...model, seen })))];
    expect(assumed.launches).toHaveLength(1);
    expect(measured.launches).toEqual(assumed.launches);
    // What is predicted goes by what was measured.
    const tpot_ms = (placement: typeof assumed) => planOf(placement, 'a').groups[0]!.predicted!.tpot_ms;
    expect(tpot_ms(measured)).toBeGreaterThan(1.2 * tpot_ms(assumed));
  });
});
