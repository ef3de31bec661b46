import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { findDevice } from '../../../solver/catalog/devices.ts';
import { findModel } from '../../../solver/catalog/known-models.ts';
import { type BatchingLimits, simulateReplica } from '../../../solver/simulator/batching.ts';
import { roofline } from '../../../solver/simulator/calibration.ts';
import { type ConfiguredReplica, replicaOf } from '../../../solver/simulator/deployment.ts';
import { exponential, seededRandom } from '../../../solver/simulator/random.ts';
import { type RequestColumns, requestColumns } from '../../../solver/simulator/requests.ts';

const base = replicaOf({
  model: findModel('llama-3.1-8b'),
  device: findDevice('A100'),
  engine: 'vllm',
  tp: 1,
  pp: 1,
});
const sliding = replicaOf({
  model: findModel('gpt-oss-20b'),
  device: findDevice('H100'),
  engine: 'vllm',
  tp: 1,
  pp: 1,
});
const run = (
  requests: RequestColumns,
  limits: Partial<BatchingLimits> = {},
  replica: ConfiguredReplica = base,
) => simulateReplica(replica.model, requests, { ...replica.limits, ...limits });

const request = fc.record({
  arrival_s: fc.double({ min: 0, max: 3, noNaN: true }),
  input_tokens: fc.integer({ min: 1, max: 600 }),
  output_tokens: fc.integer({ min: 1, max: 120 }),
});
const workload = fc.array(request, { minLength: 1, maxLength: 40 }).map(requestColumns);
const limits = fc.record({
  kv_tokens: fc.constantFrom(768, 1024, 4096, 100_000),
  max_sequences: fc.constantFrom(1, 3, 64),
  max_batched_tokens: fc.constantFrom(64, 512, 2048),
  admission: fc.constantFrom('grow' as const, 'reserve' as const),
  prompts: fc.constantFrom('chunked' as const, 'prompts-first' as const),
  concurrency: fc.constantFrom(0, 0, 1, 7),
});

describe('continuous batching', () => {
  it('conserves tokens, never exceeds the KV cache, and orders every request’s times', () => {
    fc.assert(
      fc.property(workload, limits, fc.boolean(), (requests, change, windowed) => {
        const record = run(requests, change, windowed ? sliding : base);
        const sum = (values: Int32Array): number => values.reduce((a, b) => a + b, 0);
        expect(record.refused).toBe(0);
        expect(record.generated_tokens).toBe(sum(requests.output_tokens));
        // What is prefilled is the prompts, and after a preemption all that was in the cache again.
        expect(record.prompt_tokens).toBeGreaterThanOrEqual(sum(requests.input_tokens));
        if (sum(record.preemptions) === 0) expect(record.prompt_tokens).toBe(sum(requests.input_tokens));
        if (change.admission === 'reserve') expect(sum(record.preemptions)).toBe(0);
        expect(record.kv_peak).toBeLessThanOrEqual(1);
        expect(record.kv_mean).toBeLessThanOrEqual(record.kv_peak * (1 + 1e-9));
        expect(record.kv_mean).toBeGreaterThan(0);
        for (let i = 0; i < requests.input_tokens.length; i++) {
          expect(record.first_token_s[i]).toBeGreaterThan(record.arrival_s[i]!);
          expect(record.finish_s[i]).toBeGreaterThanOrEqual(record.first_token_s[i]!);
          expect(record.finish_s[i]).toBeLessThanOrEqual(record.end_s);
        }
        expect(record.busy_s).toBeLessThanOrEqual(record.end_s * (1 + 1e-9));
        // Every token after a sequence's first was a gap, but for the first after a preemption.
        const gaps = record.gaps.tokens.reduce((a, b) => a + b, 0);
        expect(gaps).toBe(record.generated_tokens - requests.input_tokens.length - recomputedFirsts(record));
      }),
      { numRuns: 150, seed: 7 },
    );
  });

  it('lets a long prompt in only where all of it fits, so that none is computed in vain', () => {
    const prompts = Array.from({ length: 6 }, () => ({ arrival_s: 0, input_tokens: 600, output_tokens: 4 }));
    // One and a half prompts fit; of each, a chunk of 128 tokens would fit beside another one.
    const record = run(requestColumns(prompts), { kv_tokens: 912, max_batched_tokens: 128 });
    expect(record.recomputed_tokens).toBe(0);
    expect(record.prompt_tokens).toBe(6 * 600);
  });

  it('is a function of its input', () => {
    fc.assert(
      fc.property(workload, limits, (requests, change) => {
        expect(run(requests, change)).toEqual(run(requests, change));
      }),
      { numRuns: 20, seed: 3 },
    );
  });

  it('takes as long in closed form as step by step', () => {
    // One sequence alone: the sum over its steps, added up one by one.
    const requests = requestColumns([{ arrival_s: 0, input_tokens: 500, output_tokens: 800 }]);
    const { model } = base;
    let seconds = model.stepTime_s(0, 0, 0, [{ tokens: 500, before: 0, last: true }]);
    for (let k = 0; k < 799; k++) seconds += model.stepTime_s(1, 501 + k, 0);
    const record = run(requests);
    expect(record.finish_s[0]).toBeCloseTo(seconds, 9);
    expect(record.steps).toBe(800);
  });

  it('crosses a sliding window at the right step', () => {
    const requests = requestColumns([{ arrival_s: 0, input_tokens: 100, output_tokens: 200 }]);
    const { model } = sliding;
    let seconds = model.stepTime_s(0, 0, 0, [{ tokens: 100, before: 0, last: true }]);
    for (let k = 0; k < 199; k++) seconds += model.stepTime_s(1, 101 + k, Math.min(128, 101 + k));
    expect(run(requests, {}, sliding).finish_s[0]).toBeCloseTo(seconds, 9);
  });

  it('preempts the newest when memory is short, recomputes it, and serves all', () => {
    const requests = requestColumns(
      Array.from({ length: 4 }, (_, i) => ({ arrival_s: i * 1e-6, input_tokens: 200, output_tokens: 300 })),
    );
    const record = run(requests, { kv_tokens: 1200 });
    expect(record.preemptions[0]).toBe(0);
    expect(record.preemptions[3]).toBeGreaterThan(0);
    expect(record.recomputed_tokens).toBeGreaterThan(0);
    expect(record.kv_peak).toBeGreaterThan(0.9);
    expect(record.generated_tokens).toBe(1200);
    expect([...record.finish_s].every(Number.isFinite)).toBe(true);
  });

  it('refuses what never fits, and goes on', () => {
    const requests = requestColumns([
      { arrival_s: 0, input_tokens: 5000, output_tokens: 10 },
      { arrival_s: 1, input_tokens: 50, output_tokens: 10 },
    ]);
    const record = run(requests, { kv_tokens: 1024 });
    expect(record.refused).toBe(1);
    expect(record.finish_s[0]).toBeNaN();
    expect(record.finish_s[1]).toBeGreaterThan(1);
  });

  it('keeps as many requests outstanding as asked for', () => {
    const rows = Array.from({ length: 30 }, () => ({ arrival_s: 0, input_tokens: 100, output_tokens: 20 }));
    const record = run(requestColumns(rows), { concurrency: 4 });
    for (let i = 4; i < 30; i++) {
      const at = record.arrival_s[i]!;
      const outstanding = [...record.arrival_s].filter(
        (from, j) => j !== i && from <= at && record.finish_s[j]! > at,
      );
      expect(outstanding.length).toBeLessThan(4);
    }
  });

  it('stalls decoding for prompts unless they are chunked', () => {
    const requests = requestColumns([
      { arrival_s: 0, input_tokens: 100, output_tokens: 400 },
      { arrival_s: 1, input_tokens: 8000, output_tokens: 2 },
    ]);
    const longest = (prompts: BatchingLimits['prompts']): number =>
      Math.max(...run(requests, { prompts, max_batched_tokens: 512 }).gaps.seconds);
    expect(longest('prompts-first')).toBeGreaterThan(5 * longest('chunked'));
  });
});

describe('queueing', () => {
  /** One request at a time with one output token: a server with a fixed service time. */
  it.each([0.3, 0.6, 0.8])('waits as an M/D/1 queue does at a load of %d', (load) => {
    const { model } = base;
    const service = model.stepTime_s(0, 0, 0, [{ tokens: 1000, before: 0, last: true }]);
    const random = seededRandom(11);
    let now = 0;
    const rows = Array.from({ length: 40_000 }, () => {
      now += (exponential(random) * service) / load;
      return { arrival_s: now, input_tokens: 1000, output_tokens: 1 };
    });
    const record = run(requestColumns(rows), { max_sequences: 1, max_batched_tokens: 1000 });
    const waits = record.first_token_s.map((first, i) => first - record.arrival_s[i]! - service);
    const mean = waits.reduce((a, b) => a + b, 0) / waits.length;
    // Pollaczek and Khinchine: W = ρ·s / (2(1 − ρ)).
    expect(mean / ((load * service) / (2 * (1 - load)))).toBeGreaterThan(0.93);
    expect(mean / ((load * service) / (2 * (1 - load)))).toBeLessThan(1.07);
  });
});

describe('monotonicity', () => {
  const mean = (values: Float64Array): number => values.reduce((a, b) => a + b, 0) / values.length;
  const latency = (requests: RequestColumns, replica: ConfiguredReplica): number => {
    const record = run(requests, {}, replica);
    return mean(record.finish_s.map((finish, i) => finish - record.arrival_s[i]!));
  };
  const on = (name: string, change: object = {}): ConfiguredReplica =>
    replicaOf({
      model: findModel('llama-3.1-8b'),
      device: { ...findDevice(name), ...change },
      engine: 'vllm',
      tp: 1,
      pp: 1,
    });

  it('steps get no shorter with more sequences, context or prompt tokens', () => {
    fc.assert(
      fc.property(
        fc.integer({ min: 1, max: 500 }),
        fc.integer({ min: 1, max: 100_000 }),
        fc.integer({ min: 1, max: 4000 }),
        fc.constantFrom(base, sliding),
        (sequences, keys, tokens, { model }) => {
          const chunk = (n: number) => [{ tokens: n, before: 0, last: true }];
          const seconds = model.stepTime_s(sequences, keys, keys, chunk(tokens));
          expect(model.stepTime_s(sequences + 1, keys, keys, chunk(tokens))).toBeGreaterThan(seconds);
          expect(model.stepTime_s(sequences, keys + 100, keys, chunk(tokens))).toBeGreaterThan(seconds);
          expect(model.stepTime_s(sequences, keys, keys, chunk(tokens + 1))).toBeGreaterThanOrEqual(seconds);
        },
      ),
      { numRuns: 200, seed: 5 },
    );
  });

  it('a device with more bandwidth is no slower, and a roofline is a lower bound', () => {
    fc.assert(
      fc.property(workload, (requests) => {
        const faster = on('A100', { memory_bandwidth_bytes_per_s: 4e12 });
        const ideal = replicaOf({ ...base.config, calibration: roofline });
        expect(latency(requests, faster)).toBeLessThan(latency(requests, on('A100')));
        expect(latency(requests, ideal)).toBeLessThan(latency(requests, base));
      }),
      { numRuns: 25, seed: 9 },
    );
  });
});

/** Requests that were preempted while they decoded get their next token from a prompt step. */
function recomputedFirsts(record: {
  preemptions: Int32Array;
  gaps: { tokens: number[] };
  generated_tokens: number;
  first_token_s: Float64Array;
}): number {
  const gaps = record.gaps.tokens.reduce((a, b) => a + b, 0);
  const missing = record.generated_tokens - record.first_token_s.length - gaps;
  const preempted = record.preemptions.reduce((a, b) => a + b, 0);
  expect(missing).toBeGreaterThanOrEqual(0);
  expect(missing).toBeLessThanOrEqual(preempted);
  return missing;
}
