import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { admitNew, admitTo, deviceFree_ms, lanesNow } from '../../../solver/sharing/admission.ts';
import type { RequestView } from '../../../solver/sharing/device-view.ts';
import { addPrompt, lanesOf, waitingPrompt } from '../../../solver/sharing/lanes.ts';
import { defaultSharingSettings, type SharingSettings } from '../../../solver/sharing/settings.ts';
import { validate } from '../../../solver/sharing/shadow-validation.ts';
import { interactiveSlo } from '../../../solver/sharing/slo.ts';
import { seededRandom } from '../../../solver/simulator/random.ts';
import { PlainDevice } from './plain-device.ts';
import {
  cpuSpeed,
  decoding,
  device,
  exact,
  formulaProfile,
  gpuSpeed,
  instance,
  plain,
  request,
  type Speed,
  slowGpuSpeed,
} from './support.ts';

interface Arrival {
  input: number;
  output: number;
  gap_ms: number;
  at: number;
}

/** As many short prompts as long ones, at every time, for every instance. */
function drawArrivals(seed: number, gap_ms: number): Arrival[] {
  const random = seededRandom(seed);
  return Array.from({ length: 60 }, () => ({
    input: 20 + Math.floor(3000 * random() ** 2),
    output: 1 + Math.floor(200 * random()),
    gap_ms: 2 * gap_ms * random(),
    at: Math.floor(random() * 64),
  }));
}

/** Arrivals at a device of a few instances; every request that is taken runs to its end. */
function serve(
  arrivals: readonly Arrival[],
  speed: Speed,
  instances: number,
  settings: SharingSettings,
): PlainDevice {
  const worker = new PlainDevice(
    device(
      'd',
      Array.from({ length: instances }, (_, at) =>
        instance(`m${at}@d`, [], { profile: formulaProfile(speed), kv_bytes: 1e9 }),
      ),
      { pool_bytes: 1e12 },
    ),
    settings,
  );
  let arrival_ms = 0;
  for (const [index, { input, output, gap_ms, at }] of arrivals.entries()) {
    arrival_ms += gap_ms;
    worker.run(arrival_ms);
    worker.offer(
      at % instances,
      request(`r${index}`, {
        arrival_ms,
        input_tokens: input,
        prefill_tokens_left: input,
        expected_output_tokens: output,
        service_level: interactiveSlo(input),
      }),
    );
  }
  worker.run(1e7);
  return worker;
}

describe('shadow validation', () => {
  it.each([
    ['the paper’s order, exact estimates, CPU', cpuSpeed, 2, 700, plain],
    ['the paper’s order, exact estimates, GPU', slowGpuSpeed, 6, 120, plain],
    ['all settings as they come, CPU', cpuSpeed, 2, 700, defaultSharingSettings],
    ['all settings as they come, GPU', slowGpuSpeed, 6, 120, defaultSharingSettings],
  ] as const)('admits nobody by whom an SLO breaks: %s', (_, speed, instances, gap_ms, settings) => {
    let admitted = 0;
    let refused = 0;
    fc.assert(
      fc.property(fc.nat(), (seed) => {
        const worker = serve(drawArrivals(seed, gap_ms), speed, instances, settings);
        expect(worker.late).toEqual([]);
        admitted += worker.admitted;
        refused += worker.refused;
      }),
      { numRuns: 40, seed: 5 },
    );
    // The property says something only where both happen.
    expect(admitted).toBeGreaterThan(400);
    expect(refused).toBeGreaterThan(400);
  });

  it('is needed: whoever takes everybody breaks SLOs', () => {
    const arrivals = Array.from({ length: 40 }, (_, at) => ({ input: 1500, output: 80, gap_ms: 150, at }));
    const blind = serve(arrivals, cpuSpeed, 2, exact);
    const everybody = new PlainDevice(
      device('d', [
        instance(
          'm0@d',
          arrivals.map((_, index) =>
            request(`r${index}`, {
              arrival_ms: 0,
              input_tokens: 1500,
              expected_output_tokens: 80,
              service_level: { ttft_ms: 2930, tpot_ms: 250 },
            }),
          ),
          { profile: formulaProfile(cpuSpeed) },
        ),
      ]),
      exact,
    );
    everybody.run(1e7);
    expect(blind.late).toEqual([]);
    expect(everybody.late.length).toBeGreaterThan(0);
  });

  it('refuses for a late token exactly where a token-by-token simulation sees one', () => {
    let [refusals, admissions] = [0, 0];
    fc.assert(
      fc.property(
        fc.array(
          fc.record({
            input: fc.integer({ min: 100, max: 2500 }),
            headroom: fc.integer({ min: 80, max: 2000 }),
          }),
          {
            minLength: 1,
            maxLength: 6,
          },
        ),
        fc.integer({ min: 100, max: 4000 }),
        (running, input) => {
          // Answers so long that nobody ends while the newcomer's prompt waits.
          const build = (): RequestView[] =>
            running.map(({ input, headroom }, index) =>
              decoding(`old${index}`, {
                input_tokens: input,
                output_tokens: 20,
                expected_output_tokens: 400,
                first_token_ms: headroom - 20 * 250,
                arrival_ms: headroom - 20 * 250 - 500,
              }),
            );
          const newcomer = request('new', { input_tokens: input, expected_output_tokens: 400 });
          const make = (requests: RequestView[]) =>
            device('d', [
              instance(
                'm0@d',
                requests.filter((_, at) => at % 2 === 0),
                { profile: formulaProfile(cpuSpeed) },
              ),
              instance(
                'm1@d',
                requests.filter((_, at) => at % 2 === 1),
                { profile: formulaProfile(cpuSpeed) },
              ),
            ]);
          const view = make(build());
          const lanes = lanesOf(view.instances, 0, plain);
          addPrompt(lanes[0]!, waitingPrompt(newcomer, 0));
          const verdict = validate(lanes, 'new', 0, plain);
          const real = make(build());
          real.instances[0]!.requests.push({ ...newcomer });
          const worker = new PlainDevice(real, plain);
          worker.run(15_000);
          if (!verdict.ok && verdict.violation === 'decode_round') return;
          if (verdict.ok) admissions++;
          else refusals++;
          expect(worker.late.length > 0).toBe(!verdict.ok);
          if (!verdict.ok && verdict.violation === 'own_first_token')
            expect(worker.late.some(({ request, token }) => request === 'new' && token === 0)).toBe(true);
        },
      ),
      { numRuns: 150, seed: 3 },
    );
    expect(refusals).toBeGreaterThan(20);
    expect(admissions).toBeGreaterThan(20);
  });

  it('tells the paper’s three cases apart', () => {
    const busy = (id: string, count: number, headroom_ms: number) =>
      instance(
        id,
        Array.from({ length: count }, (_, at) =>
          decoding(`${id}${at}`, { first_token_ms: headroom_ms - 2500, arrival_ms: -3000 }),
        ),
        { profile: formulaProfile(cpuSpeed) },
      );
    const own = admitTo(
      device('d', [busy('a@d', 2, 200)]),
      busy('a@d', 2, 200),
      request('new', { input_tokens: 3900, prefill_tokens_left: 3900 }),
      0,
      exact,
    );
    expect(own).toMatchObject({ admit: false, limit: 'compute', violation: 'own_first_token' });
    // Its prompt takes 188 ms and is due first; then a step of 62 ms comes too late for those due at 200 ms.
    const tight = device('d', [busy('a@d', 1, 200), busy('b@d', 1, 900)]);
    const short = request('new', { arrival_ms: -1810, input_tokens: 256, prefill_tokens_left: 256 });
    const other = admitTo(tight, tight.instances[0]!, short, 0, exact);
    expect(other).toMatchObject({ admit: false, violation: 'existing_request' });
    const full = device('d', [busy('a@d', 30, 900), busy('b@d', 30, 900), busy('c@d', 30, 900)]);
    const round = admitTo(full, full.instances[0]!, request('new'), 0, exact);
    expect(round).toMatchObject({ admit: false, violation: 'decode_round' });
    if (!round.admit)
      expect(round.because).toMatch(/a round of decode steps would take \d+ ms where .* every 250 ms/);
  });

  it('counts the iteration that runs: its tokens come, and it takes its time', () => {
    const short = instance('a@d', [decoding('x', { first_token_ms: -2480, arrival_ms: -3000 })]);
    const view = device('d', [short, instance('b@d', [])]);
    // Due in 20 ms, and its step of 15 ms runs: without it the token would count as not yet begun.
    const running = { ...view, running: { instance: 'a@d', tokens: 0, ends_ms: 15 } };
    expect(admitTo(running, running.instances[1]!, request('new'), 0, exact).admit).toBe(true);
    expect(lanesNow(running, 0, exact)[0]!.deadline_ms).toBe(20 + 250);
    expect(deviceFree_ms(running, 0)).toBe(15);
    const slow = { ...view, running: { instance: 'b@d', request: 'gone', tokens: 500, ends_ms: 1995 } };
    expect(admitTo(slow, slow.instances[1]!, request('new'), 0, exact).admit).toBe(false);
  });

  it('does not wait for those whose SLO is broken already', () => {
    const view = device('d', [
      instance('a@d', [decoding('lost', { first_token_ms: -90_000, arrival_ms: -95_000 })]),
    ]);
    expect(admitTo(view, view.instances[0]!, request('new'), 0, exact).admit).toBe(true);
  });

  it('looks ahead to a new instance’s load', () => {
    const model = (load_ms: number) => ({
      model: 'm',
      profile: formulaProfile(gpuSpeed),
      weight_bytes: 10_000,
      kv_bytes_per_token: 1,
      load_ms,
    });
    const view = device('d', [instance('a@d', [decoding('x')])]);
    // Its prompt takes 12 ms and 0.06 ms for each of 500 tokens.
    expect(admitNew(view, model(1900), request('new'), 0, exact).admit).toBe(true);
    const late = admitNew(view, model(1990), request('new'), 0, exact);
    expect(late).toMatchObject({ admit: false, violation: 'own_first_token' });
  });

  it('waits for memory that is still being given up', () => {
    const model = {
      model: 'm',
      profile: formulaProfile(gpuSpeed),
      weight_bytes: 10_000,
      kv_bytes_per_token: 1,
      load_ms: 1900,
    };
    const ask = (held_bytes: number): boolean =>
      admitNew(device('d', [], { held_bytes, release_ms: 90 }), model, request('new'), 0, exact).admit;
    // 10 000 bytes and 5120 for KV: they fit, or start 90 ms later and make the first token late.
    expect(ask(84_880)).toBe(true);
    expect(ask(84_881)).toBe(false);
  });

  it('keeps the overestimate in hand: what just fits exactly does not fit with it', () => {
    const view = device('d', [instance('a@d', [], { profile: formulaProfile(cpuSpeed) })]);
    // 60 ms and 0.5 ms a token: 3870 tokens take 1995 ms in one chunk.
    const settings = { ...exact, prefill_chunk_tokens_max: 4096 };
    const newcomer = request('new', {
      input_tokens: 3870,
      prefill_tokens_left: 3870,
      expected_output_tokens: 5,
    });
    expect(admitTo(view, view.instances[0]!, newcomer, 0, settings).admit).toBe(true);
    expect(admitTo(view, view.instances[0]!, newcomer, 0, { ...settings, overestimate: 0.1 }).admit).toBe(
      false,
    );
  });

  it('ends where a prompt never gets its turn', () => {
    const view = device('d', [instance('a@d', [decoding('x', { first_token_ms: -2000 })])]);
    const settings = { ...exact, validation_iterations_max: 3, early_prefill: false };
    const patient = request('new', { service_level: { ttft_ms: 60_000, tpot_ms: 250 } });
    expect(admitTo(view, view.instances[0]!, patient, 0, settings)).toMatchObject({
      admit: false,
      violation: 'undecided',
    });
  });
});
