import { describe, expect, it } from 'vitest';
import { admitTo } from '../../../solver/sharing/admission.ts';
import { lanesOf } from '../../../solver/sharing/lanes.ts';
import { type Iteration, nextIteration } from '../../../solver/sharing/next-iteration.ts';
import { defaultSharingSettings } from '../../../solver/sharing/settings.ts';
import { seededRandom } from '../../../solver/simulator/random.ts';
import { PlainDevice } from './plain-device.ts';
import { decoding, device, exact, formulaProfile, instance, request, slowGpuSpeed } from './support.ts';

const profile = formulaProfile(slowGpuSpeed);
const background = { background: true };

function choice(...instances: Parameters<typeof lanesOf>[0]): Iteration & { instance: string } {
  const lanes = lanesOf(instances, 0, exact);
  const next = nextIteration(lanes, 0, exact);
  if ('at_ms' in next) throw new Error('nothing runs');
  return { ...next, instance: lanes[next.lane]!.instance };
}

describe('requests that nothing is promised to', () => {
  it('have their turn while every promise can wait for it, and give way where one cannot', () => {
    const batch = (due_ms: number) =>
      instance('a@d', [decoding('promised', { first_token_ms: due_ms - 2500 })], { profile });
    const other = instance('b@d', [decoding('other', { first_token_ms: -2490, ...background })], { profile });
    expect(choice(batch(250), other).instance).toBe('b@d');
    // Both steps take 26 ms: in 40 ms there is no time for two.
    expect(choice(batch(40), other).instance).toBe('a@d');
    expect(choice(other).instance).toBe('b@d');
  });

  it('a prompt of theirs waits for prompts that were promised a time', () => {
    const waiting = (id: string, changes: object) =>
      request(id, { input_tokens: 2000, prefill_tokens_left: 2000, ...changes });
    const promised = instance('a@d', [waiting('promised', { arrival_ms: -1700 })], { profile });
    const other = instance('b@d', [waiting('other', { arrival_ms: -1900, ...background })], { profile });
    expect(choice(promised, other).instance).toBe('a@d');
    const relaxed = instance('a@d', [waiting('promised', { arrival_ms: -500 })], { profile });
    expect(choice(relaxed, other).instance).toBe('b@d');
  });

  it('keep nobody from being let in', () => {
    const many = Array.from({ length: 64 }, (_, at) => decoding(`b${at}`, { ...background }));
    const loaded = (requests: typeof many) =>
      device(
        'd',
        [instance('a@d', [], { profile }), instance('b@d', requests, { profile, kv_bytes: 90_000 })],
        {
          pool_bytes: 1e9,
        },
      );
    const ask = (requests: typeof many) => {
      const view = loaded(requests);
      return admitTo(
        view,
        view.instances[0]!,
        request('new', {
          input_tokens: 4000,
          prefill_tokens_left: 4000,
          service_level: { ttft_ms: 700, tpot_ms: 60 },
        }),
        0,
        exact,
      );
    };
    expect(ask(many)).toMatchObject({ admit: true });
    expect(ask(many.map(({ background: _, ...rest }) => rest))).toMatchObject({ admit: false });
  });

  it('break no promise of those that were let in, and still come on', () => {
    const random = seededRandom(5);
    const worker = new PlainDevice(
      device(
        'd',
        [instance('a@d', [], { profile, kv_bytes: 1e9 }), instance('b@d', [], { profile, kv_bytes: 1e9 })],
        {
          pool_bytes: 1e12,
        },
      ),
      defaultSharingSettings,
    );
    let at_ms = 0;
    for (let index = 0; index < 120; index++) {
      at_ms += 400 * random();
      worker.run(at_ms);
      const input_tokens = 20 + Math.floor(1500 * random());
      worker.offer(
        index % 2,
        request(`r${index}`, {
          arrival_ms: worker.now_ms,
          input_tokens,
          prefill_tokens_left: input_tokens,
          expected_output_tokens: 1 + Math.floor(150 * random()),
          ...(index % 2 === 1 ? background : {}),
        }),
      );
    }
    worker.run(Number.POSITIVE_INFINITY);
    expect(worker.late).toEqual([]);
    expect(worker.admitted).toBeGreaterThan(40);
    // All have ended, those without a promise too.
    expect(worker.device.instances.map(({ requests }) => requests)).toEqual([[], []]);
  });
});
