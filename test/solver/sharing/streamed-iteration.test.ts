/** What an iteration of streamed weights takes of its prompts, beside what decodes. */
import { describe, expect, it } from 'vitest';
import type { InstanceView } from '../../../solver/sharing/device-view.ts';
import { lanesOf } from '../../../solver/sharing/lanes.ts';
import { type Iteration, nextIteration } from '../../../solver/sharing/next-iteration.ts';
import { streamedIteration } from '../../../solver/sharing/streamed-iteration.ts';
import { decoding, exact, formulaProfile, gpuSpeed, instance, request } from './support.ts';

/** Weights cross in 40 ms; from 200 rows on arithmetic takes longer. */
const pace_ms = (rows: number): number => Math.max(40, rows / 5);
/** As it is measured: each iteration takes the link's time at least. */
const streamed = { profile: formulaProfile({ ...gpuSpeed, step_ms: 40 }) };
const chunk = { ...streamed, prefill_chunk_tokens_max: 512 };

function choose(instances: InstanceView[]) {
  const lanes = lanesOf(instances, 0, exact);
  const next = nextIteration(lanes, 0, exact) as Iteration;
  return { lane: lanes[next.lane]!.instance, ...streamedIteration(lanes, next, pace_ms, 0, exact) };
}

/** A sequence whose next token is due in so many ms. */
const due = (ms: number) =>
  decoding('d', { first_token_ms: ms - 2500, service_level: { ttft_ms: 2000, tpot_ms: 250 } });

describe('an iteration of streamed weights', () => {
  it('takes a whole prompt where nobody waits', () => {
    const prompt = request('p', { input_tokens: 400 });
    expect(choose([instance('m', [prompt], chunk)])).toMatchObject({ prefill_tokens: 400, decode: false });
  });

  it('takes what decodes along with every prompt, and of the prompt what its budget allows', () => {
    const { prefill_tokens, decode, ms } = choose([
      instance('m', [due(100), request('p', { input_tokens: 900 })], {
        ...streamed,
        prefill_chunk_tokens_max: 2048,
      }),
    ]);
    expect(decode).toBe(true);
    // 90 of 100 ms, a row of them the sequence’s.
    expect(prefill_tokens).toBe(449);
    expect(ms).toBeCloseTo(90);
  });

  it('takes what is free beside the link where a token is late already, and no more', () => {
    const late = decoding('d', { first_token_ms: -2460 });
    const waits = request('p', { input_tokens: 900, arrival_ms: -100 });
    const { prefill_tokens, decode } = choose([instance('m', [late, waits], chunk)]);
    expect(decode).toBe(true);
    // 40 ms and a twentieth.
    expect(prefill_tokens).toBe(209);
  });

  it('puts off nobody of another model', () => {
    const own = instance('m', [request('p', { input_tokens: 900, arrival_ms: -1990 })], chunk);
    const alone = choose([own]);
    expect(alone.prefill_tokens).toBe(512);
    const other = instance('o', [due(100)], { profile: formulaProfile({ ...gpuSpeed, step_ms: 10 }) });
    const beside = choose([own, other]);
    expect(beside.lane).toBe('m');
    expect(beside.ms).toBeLessThan(90);
    expect(beside.prefill_tokens).toBeGreaterThan(200);
  });

  it('takes no prompt into a decode step that it would make late', () => {
    const steep = (rows: number): number => 40 + 10 * rows;
    const lanes = lanesOf([instance('m', [due(45), request('p', { input_tokens: 900 })], chunk)], 0, exact);
    const decode: Iteration = { lane: 0, tokens: 0, ms: 40 };
    expect(streamedIteration(lanes, decode, steep, 0, exact)).toEqual({
      prefill_tokens: 0,
      decode: true,
      ms: 50,
    });
    // On its own turn a prompt goes on by a little in any case.
    const turn: Iteration = { lane: 0, prompt: lanes[0]!.prompts[0]!, tokens: 256, ms: 200 };
    expect(streamedIteration(lanes, turn, steep, 0, exact).prefill_tokens).toBe(16);
  });

  it('has work that nothing is promised for only in time that promised prompts can spare', () => {
    const background = instance('b', [request('p', { input_tokens: 2000, background: true })], {
      ...streamed,
      prefill_chunk_tokens_max: 2048,
    });
    const alone = choose([background]);
    expect(alone.prefill_tokens).toBe(2000);
    const lanes = lanesOf(
      [
        background,
        instance('o', [request('q', { input_tokens: 500, service_level: { ttft_ms: 250, tpot_ms: 250 } })]),
      ],
      0,
      exact,
    );
    const next: Iteration = { lane: 0, prompt: lanes[0]!.prompts[0]!, tokens: 2000, ms: 160 };
    const beside = streamedIteration(lanes, next, pace_ms, 0, exact);
    expect(beside.prefill_tokens).toBeLessThan(2000);
    expect(beside.prefill_tokens).toBeGreaterThan(200);
  });
});
