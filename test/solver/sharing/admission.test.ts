import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { type AdmissionVerdict, admitNew, admitTo, retryAfter } from '../../../solver/sharing/admission.ts';
import type { DeviceView, ModelOnDevice, RequestView } from '../../../solver/sharing/device-view.ts';
import { recycleAt } from '../../../solver/sharing/keep-alive.ts';
import { kvDemand } from '../../../solver/sharing/kv-budget.ts';
import { decoding, device, exact, formulaProfile, gpuSpeed, instance, request } from './support.ts';

const settings = { ...exact, kv_tokens_min: 1000, kv_watermark: 0.5 };
const model: ModelOnDevice = {
  model: 'new',
  profile: formulaProfile(gpuSpeed),
  weight_bytes: 20_000,
  kv_bytes_per_token: 1,
  load_ms: 200,
};

function apply(
  view: DeviceView,
  admission: AdmissionVerdict,
): { budget_bytes: number; kept: DeviceView['instances'] } {
  if (!admission.admit) throw new Error('refused');
  let budget_bytes = view.budget_bytes;
  let kept = view.instances;
  for (const release of admission.releases) {
    const one = kept.find(({ id }) => id === release.instance)!;
    if ('recycle' in release) {
      budget_bytes -= one.weight_bytes + one.kv_bytes;
      kept = kept.filter((other) => other !== one);
    } else {
      budget_bytes -= one.kv_bytes - release.kv_to_bytes;
      kept = kept.map((other) => (other === one ? { ...one, kv_bytes: release.kv_to_bytes } : other));
    }
  }
  return { budget_bytes, kept };
}

describe('admission to memory', () => {
  it('takes what is recommended, or what is required, or nothing', () => {
    const view = (pool_bytes: number) =>
      device('d', [instance('a@d', [], { kv_bytes: 1000 })], { pool_bytes });
    const newcomer = request('r', {
      input_tokens: 1900,
      prefill_tokens_left: 1900,
      expected_output_tokens: 100,
    });
    const ask = (pool_bytes: number): AdmissionVerdict => {
      const d = view(pool_bytes);
      return admitTo(d, d.instances[0]!, newcomer, 0, settings);
    };
    // It has 11 000 bytes and needs 2000 or 3000 for KV.
    expect(ask(13_000)).toMatchObject({ admit: true, kv_bytes: 3000, compromise: false });
    expect(ask(12_999)).toMatchObject({ admit: true, kv_bytes: 2000, compromise: true });
    expect(ask(12_000)).toMatchObject({ admit: true, kv_bytes: 2000, compromise: true });
    const refused = ask(11_999);
    expect(refused).toMatchObject({ admit: false, limit: 'memory' });
    if (!refused.admit) expect(refused.because).toMatch(/required, .* more than d can give/);
  });

  it('finds room with neighbours exactly where there is some, and takes nobody what they require', () => {
    let [made, refusals] = [0, 0];
    fc.assert(
      fc.property(
        fc.array(fc.record({ requests: fc.nat({ max: 2 }), kv: fc.integer({ min: 1000, max: 9000 }) }), {
          maxLength: 5,
        }),
        fc.integer({ min: 20_000, max: 140_000 }),
        (neighbours, pool) => {
          const instances = neighbours.map(({ requests, kv }, at) => {
            const held = Array.from({ length: requests }, (_, index) =>
              decoding(`${at}.${index}`, { first_token_ms: 5000, arrival_ms: 3000 }),
            );
            const least = kvDemand({ requests: held, kv_bytes_per_token: 1 }, settings).required_bytes;
            return instance(`n${at}@d`, held, { kv_bytes: Math.max(kv, least) });
          });
          const view = device('d', instances, {});
          view.pool_bytes = Math.max(pool, view.budget_bytes);
          const admission = admitNew(view, model, request('r'), 0, settings);
          const required =
            model.weight_bytes +
            kvDemand({ requests: [], kv_bytes_per_token: 1 }, settings, request('r')).required_bytes;
          const least = instances.reduce(
            (sum, one) =>
              sum +
              (one.requests.length === 0 ? 0 : one.weight_bytes + kvDemand(one, settings).required_bytes),
            0,
          );
          expect(admission.admit).toBe(least + required <= view.pool_bytes);
          if (!admission.admit) {
            refusals++;
            return;
          }
          made++;
          const { budget_bytes, kept } = apply(view, admission);
          expect(budget_bytes + model.weight_bytes + admission.kv_bytes).toBeLessThanOrEqual(view.pool_bytes);
          for (const one of kept)
            expect(one.kv_bytes).toBeGreaterThanOrEqual(kvDemand(one, settings).required_bytes);
          for (const one of view.instances)
            if (!kept.some(({ id }) => id === one.id)) expect(one.requests).toEqual([]);
        },
      ),
      { numRuns: 300 },
    );
    expect(made).toBeGreaterThan(30);
    expect(refusals).toBeGreaterThan(30);
  });

  it('counts what an instance has beside weights and KV, of those that come, stand and go', () => {
    const view = (working_bytes: number) =>
      device('d', [instance('idle@d', [], { kv_bytes: 1000, working_bytes })], { pool_bytes: 36_000 });
    const ask = (idle_bytes: number, working_bytes: number): AdmissionVerdict =>
      admitNew(view(idle_bytes), { ...model, working_bytes }, request('r'), 0, settings);
    // It has 11 000 bytes, and 21 000 are asked for at least.
    expect(ask(0, 4000)).toMatchObject({ admit: true, releases: [] });
    expect(ask(0, 4001)).toMatchObject({ admit: true, releases: [{ recycle: true }] });
    expect(ask(3000, 15_000)).toMatchObject({ admit: true, releases: [{ recycle: true }] });
    expect(ask(3000, 15_001)).toMatchObject({ admit: false, limit: 'memory' });
  });

  it('has nothing of KV that is taken as a whole, but with its instance', () => {
    const needs = (stays: boolean, requests: RequestView[]) => {
      const whole = instance('whole@d', requests, { kv_bytes: 8000, kv_whole: true, stays });
      const own = instance('own@d', [], { kv_bytes: 1000 });
      const view = device('d', [whole, own], { pool_bytes: 30_000 });
      const newcomer = request('r', { input_tokens: 2500, expected_output_tokens: 100 });
      return admitTo(view, own, newcomer, 0, settings);
    };
    expect(needs(true, [])).toMatchObject({ admit: false, limit: 'memory' });
    expect(needs(true, [decoding('one')])).toMatchObject({ admit: false, limit: 'memory' });
    expect(needs(false, [])).toMatchObject({
      admit: true,
      releases: [{ instance: 'whole@d', recycle: true }],
    });
  });

  it('has a device to itself where instances are limited to one', () => {
    const view = device('d', [instance('a@d', [])], { instances_max: 1 });
    expect(admitNew(view, model, request('r'), 0, settings)).toMatchObject({
      admit: false,
      limit: 'instances',
    });
    expect(
      admitNew({ ...view, instances: [], budget_bytes: 0 }, model, request('r'), 0, settings),
    ).toMatchObject({ admit: true });
  });
});

describe('a refusal', () => {
  it('says when to ask again: the first end that is expected', () => {
    const view = device('d', [
      instance('a@d', [
        decoding('x', { expected_output_tokens: 30 }),
        decoding('y', { expected_output_tokens: 500 }),
      ]),
      instance('b@d', [decoding('z', { expected_output_tokens: 60 })]),
    ]);
    const round_ms = 12 + 2 * 0.2 + 2 * 510 * 0.0002 + 12 + 0.2 + 510 * 0.0002;
    expect(retryAfter(view, 0, settings)).toBe(Math.ceil(20 * round_ms));
    expect(retryAfter(device('d', [instance('a@d', [], { ready_at_ms: 700 })]), 0, settings)).toBe(700);
  });
});

describe('the keep-alive', () => {
  it('runs from the last request, or from the end of the load', () => {
    expect(recycleAt(instance('a@d', [], { idle_since_ms: 500 }), settings)).toBe(1500);
    expect(recycleAt(instance('a@d', [], { idle_since_ms: 500, ready_at_ms: 900 }), settings)).toBe(1900);
    expect(recycleAt(instance('a@d', [decoding('x')], { idle_since_ms: 500 }), settings)).toBe(
      Number.POSITIVE_INFINITY,
    );
  });
});
