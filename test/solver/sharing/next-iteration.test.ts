import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { type Lane, lanesOf } from '../../../solver/sharing/lanes.ts';
import { nextIteration } from '../../../solver/sharing/next-iteration.ts';
import { headroom, interactiveSlo, tokenDeadline } from '../../../solver/sharing/slo.ts';
import {
  cpuSpeed,
  decodeTime,
  decoding,
  exact,
  formulaProfile,
  instance,
  plain,
  request,
} from './support.ts';

const cpu = { profile: formulaProfile(cpuSpeed) };

describe('headroom', () => {
  it('is Eq. 1 before the first token, and never more after it', () => {
    const service_level = { ttft_ms: 2000, tpot_ms: 250 };
    expect(headroom({ arrival_ms: 100, output_tokens: 0, service_level }, 600)).toBe(1500);
    // Eq. 1 for a first token exactly in time, or late: ST + TTFT + TPOT·O − CT.
    const late = { arrival_ms: 100, output_tokens: 4, first_token_ms: 2500, service_level };
    expect(headroom(late, 2600)).toBe(100 + 2000 + 250 * 4 - 2600);
    // The paper's Figure 5: 1.9 s left, a step of 0.05 s, 2.1 s left.
    const paper = { arrival_ms: 0, output_tokens: 4, service_level };
    expect(headroom(paper, 1100)).toBe(1900);
    expect(headroom({ ...paper, output_tokens: 5 }, 1150)).toBe(2100);
    // A first token that came early sets the pace.
    expect(tokenDeadline({ arrival_ms: 0, output_tokens: 1, first_token_ms: 300, service_level })).toBe(550);
  });

  it('gives long prompts longer', () => {
    expect(interactiveSlo(100)).toEqual({ ttft_ms: 2000, tpot_ms: 250 });
    expect(interactiveSlo(4096)).toEqual({ ttft_ms: 8000, tpot_ms: 250 });
  });
});

const requests = fc.array(
  fc.record({
    at: fc.nat({ max: 3 }),
    headroom: fc.integer({ min: 0, max: 5000 }),
    waits: fc.boolean(),
    tokens: fc.integer({ min: 1, max: 3000 }),
  }),
  { minLength: 1, maxLength: 40 },
);

function lanesFrom(
  list: { at: number; headroom: number; waits: boolean; tokens: number }[],
  settings = plain,
): Lane[] {
  const instances = [0, 1, 2, 3].map((at) =>
    instance(
      `m${at}@d`,
      list
        .filter((one) => one.at === at)
        .map(({ headroom, waits, tokens }, index) =>
          waits
            ? request(`p${at}.${index}`, {
                arrival_ms: headroom - 2000,
                input_tokens: tokens,
                prefill_tokens_left: tokens,
              })
            : decoding(`d${at}.${index}`, {
                input_tokens: tokens,
                first_token_ms: headroom - 2500,
                arrival_ms: headroom - 3000,
              }),
        ),
      cpu,
    ),
  );
  return lanesOf(instances, 0, settings);
}

describe('the next iteration', () => {
  it('goes to the most urgent request of all, in the paper’s order', () => {
    fc.assert(
      fc.property(requests, (list) => {
        const next = nextIteration(lanesFrom(list), 0, plain);
        if ('at_ms' in next) throw new Error('there is work');
        const least = Math.min(...list.map(({ headroom }) => headroom));
        const urgent = list.filter(({ headroom }) => headroom === least);
        expect(urgent.map(({ at }) => at)).toContain(next.lane);
        expect(urgent.some(({ waits }) => waits)).toBe(next.prompt !== undefined);
      }),
    );
  });

  it('takes as long as the whole batch, or the chunk', () => {
    const lanes = lanesFrom([
      { at: 1, headroom: 300, waits: false, tokens: 500 },
      { at: 1, headroom: 900, waits: false, tokens: 1480 },
    ]);
    // Both have 10 tokens: 510 and 1490 on average 1000.
    expect(nextIteration(lanes, 0, plain)).toEqual({ lane: 1, tokens: 0, ms: decodeTime(cpuSpeed, 2, 1000) });
  });

  it('runs a prompt early only where everybody’s next token still comes in time', () => {
    let early = 0;
    fc.assert(
      fc.property(requests, (list) => {
        const lanes = lanesFrom(list, exact);
        const next = nextIteration(lanes, 0, exact);
        if ('at_ms' in next || next.prompt === undefined) return;
        const decodes = lanes.filter(({ batch }) => batch > 0).sort((a, b) => a.deadline_ms - b.deadline_ms);
        if (decodes.length === 0 || next.prompt.deadline_ms <= decodes[0]!.deadline_ms) return;
        early++;
        let end_ms = next.ms;
        for (const lane of decodes) {
          end_ms += lane.decode_ms;
          expect(end_ms).toBeLessThanOrEqual(lane.deadline_ms + 1e-6);
        }
      }),
      { numRuns: 300 },
    );
    expect(early).toBeGreaterThan(20);
  });

  it('cuts a long prompt so that a token of another comes between, and not where nobody waits', () => {
    const alone = nextIteration(
      lanesFrom([{ at: 0, headroom: 1000, waits: true, tokens: 3000 }], exact),
      0,
      exact,
    );
    expect(alone).toMatchObject({ lane: 0, tokens: exact.prefill_chunk_tokens_max });
    const beside = nextIteration(
      lanesFrom(
        [
          { at: 0, headroom: 1900, waits: true, tokens: 3000 },
          { at: 1, headroom: 800, waits: false, tokens: 400 },
        ],
        exact,
      ),
      0,
      exact,
    );
    // 800 ms less a step of 62 ms leave 738: 1024 tokens take 572.
    expect(beside).toMatchObject({ lane: 0, tokens: 1024 });
  });

  it('lends spare time to whoever is nearest to the end, and none where somebody has little', () => {
    const lanes = (spare_ms: number): Lane[] =>
      lanesOf(
        [
          instance(
            'long@d',
            [
              decoding('a', {
                first_token_ms: spare_ms - 2500,
                arrival_ms: spare_ms - 3000,
                expected_output_tokens: 400,
              }),
            ],
            cpu,
          ),
          instance(
            'short@d',
            [decoding('b', { first_token_ms: 1000, arrival_ms: 0, expected_output_tokens: 12 })],
            cpu,
          ),
        ],
        0,
        exact,
      );
    expect(nextIteration(lanes(2000), 0, exact)).toMatchObject({ lane: 1 });
    expect(nextIteration(lanes(1100), 0, exact)).toMatchObject({ lane: 0 });
    expect(nextIteration(lanes(2000), 0, plain)).toMatchObject({ lane: 0 });
  });

  it('waits for weights and for KV that is being restored', () => {
    const loading = instance('m@d', [request('a')], { ready_at_ms: 400 });
    expect(nextIteration(lanesOf([loading], 0, exact), 0, exact)).toEqual({ at_ms: 400 });
    const restoring = instance('m@d', [decoding('a', { available_at_ms: 90 })]);
    expect(nextIteration(lanesOf([restoring], 0, exact), 0, exact)).toEqual({ at_ms: 90 });
    expect(nextIteration(lanesOf([restoring], 90, exact), 90, exact)).toMatchObject({ lane: 0, tokens: 0 });
    expect(nextIteration([], 0, exact)).toEqual({ at_ms: Number.POSITIVE_INFINITY });
  });

  it('neither starves a request whose SLO is broken nor lets it starve others', () => {
    const lost = decoding('lost', { first_token_ms: -60_000, arrival_ms: -62_000 });
    const fine = decoding('fine', { first_token_ms: -2400 });
    const at = (now_ms: number) =>
      nextIteration(
        lanesOf([instance('a@d', [{ ...lost }]), instance('b@d', [{ ...fine }])], now_ms, plain),
        now_ms,
        plain,
      );
    // Its deadlines repeat every 250 ms: at 90 ms the next is at 250 − (57 500 mod 250) = 250, the other's at 100.
    expect(at(90)).toMatchObject({ lane: 1 });
    expect(at(0)).toMatchObject({ lane: 0 });
  });
});
