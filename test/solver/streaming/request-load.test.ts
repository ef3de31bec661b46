import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { findDevice } from '../../../solver/catalog/devices.ts';
import { migSlice } from '../../../solver/catalog/mig.ts';
import { describedLink, hostLink } from '../../../solver/streaming/host-link.ts';
import {
  linkUse,
  requestLoad,
  type ToldDevice,
  type ToldModel,
} from '../../../solver/streaming/request-load.ts';
import { placement_budgets } from '../../../solver/streaming/slice-placement.ts';

const gb = 1e9;
/** Reads 100 GB/s of a link of 300. */
const assumed = { bytes_per_s: 100 * gb, capacity_bytes_per_s: 300 * gb };
const asked: ToldModel = { model: 'm', requests: 0, compute_ms: 10, step_bytes: 5 * gb, tpot_ms: 200 };
const device = (id: string, models: readonly ToldModel[], more: Partial<ToldDevice> = {}): ToldDevice => ({
  id,
  link: 'gpu-0',
  models,
  assumed,
  ...more,
});
const loadOf = (own: ToldDevice, ...others: ToldDevice[]): number | undefined =>
  requestLoad('m', own, [own, ...others]);
const reader = (id: string, step_bytes: number): ToldDevice =>
  device(id, [{ model: 'other', requests: 1, compute_ms: 1, step_bytes, tpot_ms: 100 }]);

describe('the load of a device with one request more', () => {
  const { time_share_max, link_share_max } = placement_budgets;

  it('is that of its time, where a step takes the longer of link and arithmetic', () => {
    // 5 GB at 100 GB/s are 50 ms of 200.
    expect(loadOf(device('a', [asked]))).toBeCloseTo(0.25 / time_share_max, 9);
    const slow = { ...asked, compute_ms: 120 };
    expect(loadOf(device('a', [slow]))).toBeCloseTo(0.6 / time_share_max, 9);
    // What it reached is better known than what is assumed of it.
    expect(loadOf(device('a', [asked], { reached_bytes_per_s: 50 * gb }))).toBeCloseTo(
      0.5 / time_share_max,
      9,
    );
  });

  it('counts what lies on the device in its time alone, and nobody who is idle', () => {
    const lies: ToldModel = { model: 'lies', requests: 2, compute_ms: 40, tpot_ms: 100 };
    expect(loadOf(device('a', [asked, lies]))).toBeCloseTo((0.25 + 0.4) / time_share_max, 9);
    expect(loadOf(device('a', [asked, { ...lies, requests: 0 }]))).toBeCloseTo(0.25 / time_share_max, 9);
    const use = linkUse([device('a', [lies])]);
    expect(use).toMatchObject({ devices: 1, reading: 0, due_bytes_per_s: 0 });
  });

  it('is that of the link where neighbours read over it, and not over another', () => {
    // 25 of its own, and 280 of a neighbour.
    const own = device('a', [asked]);
    expect(loadOf(own, reader('b', 28 * gb))).toBeCloseTo(305 / 300 / link_share_max, 9);
    expect(loadOf(own, { ...reader('b', 28 * gb), link: 'gpu-1' })).toBeCloseTo(0.25 / time_share_max, 9);
  });

  it('does not count weights twice that requests of one model share', () => {
    const one = device('a', [{ ...asked, requests: 1 }]);
    const many = device('a', [{ ...asked, requests: 7 }]);
    expect(loadOf(many)).toBe(loadOf(one));
    expect(loadOf(many)).toBe(loadOf(device('a', [asked])));
  });

  it('takes a link for as slow as the fastest of its devices found it', () => {
    const half = device('a', [asked], { reached_bytes_per_s: 50 * gb });
    expect(linkUse([half]).capacity_bytes_per_s).toBeCloseTo(150 * gb);
    const full = device('b', [], { reached_bytes_per_s: 100 * gb });
    expect(linkUse([half, full]).capacity_bytes_per_s).toBeCloseTo(300 * gb);
    // An assumption about one device is no limit of what all get; what one got is.
    expect(linkUse([device('c', [], { reached_bytes_per_s: 200 * gb })]).capacity_bytes_per_s).toBe(300 * gb);
    expect(linkUse([device('c', [], { reached_bytes_per_s: 400 * gb })]).capacity_bytes_per_s).toBe(400 * gb);
  });

  it('is not known where a step is not', () => {
    const stranger = { assumed: undefined };
    expect(loadOf(device('a', []))).toBeUndefined();
    expect(loadOf(device('a', [{ ...asked, step_bytes: undefined }]))).toBeUndefined();
    expect(loadOf(device('a', [asked], stranger))).toBeUndefined();
    expect(loadOf(device('a', [{ ...asked, step_bytes: 0, compute_ms: undefined }]))).toBeUndefined();
    // Without arithmetic it is the link's time, without figures of the device its own measurement.
    expect(loadOf(device('a', [{ ...asked, compute_ms: undefined }]))).toBeCloseTo(0.25 / time_share_max, 9);
    const alone = device('a', [asked], { ...stranger, reached_bytes_per_s: 100 * gb });
    expect(loadOf(alone)).toBeCloseTo(0.25 / time_share_max, 9);
    // What the link gives two of them together nobody knows: it is no budget.
    expect(loadOf(alone, { ...reader('b', 500 * gb), ...stranger, reached_bytes_per_s: gb })).toBeCloseTo(
      0.25 / time_share_max,
      9,
    );
    expect(linkUse([alone, { ...alone, id: 'b' }]).capacity_bytes_per_s).toBeUndefined();
  });

  const told = fc.array(
    fc.record({
      link: fc.constantFrom('gpu-0', 'gpu-1'),
      reached: fc.option(fc.constantFrom(40, 80, 120), { nil: undefined }),
      models: fc.array(
        fc.record({
          model: fc.constantFrom('m', 'n', 'o'),
          requests: fc.nat(2),
          compute_ms: fc.option(fc.integer({ min: 1, max: 100 }), { nil: undefined }),
          step_bytes: fc.option(
            fc.integer({ min: 0, max: 30 }).map((size) => size * gb),
            { nil: undefined },
          ),
          tpot_ms: fc.constantFrom(50, 100, 200),
        }),
        { maxLength: 3 },
      ),
    }),
    { minLength: 1, maxLength: 5 },
  );

  it('is the larger of the two sums, written down once more', () => {
    fc.assert(
      fc.property(told, (drawn) => {
        const all = drawn.map(({ link, reached, models }, index): ToldDevice => {
          const own = device(
            String(index),
            models.filter(({ model }, at) => models.findIndex((other) => other.model === model) === at),
            { link },
          );
          return reached === undefined ? own : { ...own, reached_bytes_per_s: reached * gb };
        });
        for (const own of all) {
          const beside = all.filter(({ link }) => link === own.link);
          const load = requestLoad('m', own, beside);
          const expected = byHand(own, beside);
          if (expected === undefined) expect(load).toBeUndefined();
          else expect(load).toBeCloseTo(expected, 9);
        }
      }),
    );
  });

  function stepOf({ compute_ms, step_bytes = 0 }: ToldModel, { reached_bytes_per_s }: ToldDevice) {
    if (compute_ms === undefined && step_bytes === 0) return undefined;
    return Math.max(compute_ms ?? 0, (1000 * step_bytes) / (reached_bytes_per_s ?? assumed.bytes_per_s));
  }

  function byHand(own: ToldDevice, beside: readonly ToldDevice[]): number | undefined {
    const target = own.models.find(({ model }) => model === 'm');
    if (target?.step_bytes === undefined || stepOf(target, own) === undefined) return undefined;
    let time = 0;
    let bytes_per_s = 0;
    for (const one of beside)
      for (const model of one.models) {
        const step_ms = stepOf(model, one);
        if (step_ms === undefined || (model.requests === 0 && model !== target)) continue;
        if (one === own) time += step_ms / model.tpot_ms;
        bytes_per_s += (1000 * (model.step_bytes ?? 0)) / model.tpot_ms;
      }
    const reached = beside.flatMap((one) => one.reached_bytes_per_s ?? []);
    const share = reached.length === 0 ? 1 : Math.min(1, Math.max(...reached) / assumed.bytes_per_s);
    const capacity = Math.max(share * assumed.capacity_bytes_per_s, ...reached);
    return Math.max(time / time_share_max, bytes_per_s / capacity / link_share_max);
  }
});

describe('what a plan takes the link of a device to give', () => {
  it('is found by what its node calls it', () => {
    const of = (kind: 'gpu' | 'mig', model: string, memory_gb: number) =>
      describedLink({ kind, model, memory_bytes: memory_gb * 2 ** 30, isa: [] });
    const slice = migSlice('GH200-96GB-1g.12gb')!.device;
    expect(of('mig', 'GH200 480GB MIG 1g.12gb', 11)).toEqual(hostLink(slice));
    expect(of('mig', 'GH200 480GB MIG 1g.12gb', 11)!.capacity_bytes_per_s).toBe(
      hostLink(findDevice('GH200')).capacity_bytes_per_s,
    );
    expect(of('gpu', 'A100-SXM4-40GB', 40)).toEqual(hostLink(findDevice('A100-40GB')));
    expect(of('gpu', 'of tomorrow', 40)).toBeUndefined();
    expect(of('mig', 'of tomorrow 1g.12gb', 11)).toBeUndefined();
  });
});
