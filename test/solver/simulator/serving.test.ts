import { describe, expect, it } from 'vitest';
import { findDevice } from '../../../solver/catalog/devices.ts';
import { findModel } from '../../../solver/catalog/known-models.ts';
import { weightPrecision } from '../../../solver/catalog/weight-precision.ts';
import { replicaOf } from '../../../solver/simulator/deployment.ts';
import { LatencyModel } from '../../../solver/simulator/latency.ts';
import { simulateDisaggregated, simulateServing } from '../../../solver/simulator/simulate.ts';
import { distributionOf, quantile, weightedDistributionOf } from '../../../solver/simulator/statistics.ts';
import { parseTrace } from '../../../solver/simulator/trace.ts';
import { drawRequests, type SyntheticWorkload } from '../../../solver/simulator/workload.ts';

const workload: SyntheticWorkload = {
  rate_per_s: 4,
  arrival_cv: 1,
  requests: 800,
  input: { kind: 'normal', mean: 800, deviation: 300 },
  output: { kind: 'uniform', low: 50, high: 250 },
  seed: 1,
};
const group = {
  model: findModel('llama-3.1-8b'),
  device: findDevice('A100'),
  engine: 'vllm' as const,
  tp: 1,
  pp: 1,
  dp: 1,
};
const refusal = (code: string): unknown => expect.objectContaining({ code });

describe('serving', () => {
  it('halves neither throughput nor tokens over replicas, and lowers latency', () => {
    const requests = drawRequests(workload);
    const one = simulateServing([group], requests).report;
    const two = simulateServing([{ ...group, dp: 2 }], requests).report;
    expect(two.requests).toBe(800);
    expect(two.devices).toBe(2);
    expect(two.e2e_ms.mean).toBeLessThan(one.e2e_ms.mean);
    expect(two.busy).toBeLessThan(one.busy);
    expect(one.ttft_ms.p50).toBeLessThanOrEqual(one.ttft_ms.p99);
  });

  it('deals by weight between groups', () => {
    const requests = drawRequests(workload);
    const fast = { ...group, device: findDevice('H100'), weight: 3 };
    const { report } = simulateServing([fast, { ...group, weight: 1 }], requests);
    const even = simulateServing([{ ...fast, weight: 1 }, group], requests).report;
    expect(report.e2e_ms.mean).toBeLessThan(even.e2e_ms.mean);
  });

  it('keeps a concurrency over replicas', () => {
    const requests = drawRequests(workload);
    const { report } = simulateServing([{ ...group, dp: 3 }], requests, { concurrency: 2 });
    expect(report.refused).toBe(0);
    expect(Number.isFinite(report.e2e_ms.max)).toBe(true);
  });

  it('separates prompts from decoding: steadier gaps, KV in transit', () => {
    const requests = drawRequests({ ...workload, rate_per_s: 8, input: { kind: 'fixed', tokens: 3000 } });
    const together = simulateServing([{ ...group, dp: 2 }], requests).report;
    const apart = simulateDisaggregated({ prefill: group, decode: group }, requests).report;
    expect(apart.itl_ms.p99).toBeLessThan(together.itl_ms.p99);
    expect(apart.devices).toBe(2);
    expect(apart.refused).toBe(0);
    const slow = simulateDisaggregated({ prefill: group, decode: { ...group, dp: 16 } }, requests).report;
    expect(slow.e2e_ms.mean).toBeGreaterThan(slow.ttft_ms.mean);
  });

  it('uses memory as engines do, and says what does not fit', () => {
    const seventy = { ...group, model: findModel('llama-3.3-70b') };
    expect(() => replicaOf(seventy)).toThrow(refusal('E_SIMULATION_MEMORY'));
    expect(replicaOf({ ...seventy, tp: 4 }).limits.kv_tokens).toBeGreaterThan(100_000);
    expect(
      replicaOf({ ...seventy, tp: 4, kv_bits: 8 }).limits.kv_tokens /
        replicaOf({ ...seventy, tp: 4 }).limits.kv_tokens,
    ).toBeCloseTo(2, 3);
    const packed = { ...seventy, model: { ...seventy.model, weights: weightPrecision('int4') } };
    expect(replicaOf(packed).memory.weight_bytes / 1e9).toBeLessThan(45);
  });

  it('refuses degrees and counts that cannot be', () => {
    expect(() => replicaOf({ ...group, tp: 3 })).toThrow(refusal('E_SIMULATION_INPUT'));
    expect(() => replicaOf({ ...group, tp: 0 })).toThrow(refusal('E_SIMULATION_INPUT'));
    expect(() => replicaOf({ ...group, pp: 100 })).toThrow(refusal('E_SIMULATION_INPUT'));
    expect(() => simulateServing([{ ...group, dp: 0 }], drawRequests(workload))).toThrow(/no devices/);
    expect(() => simulateServing([{ ...group, dp: -1 }], drawRequests(workload))).toThrow(
      refusal('E_SIMULATION_INPUT'),
    );
  });

  it('speeds prompts up with pipeline stages', () => {
    const requests = drawRequests({ ...workload, rate_per_s: 30, output: { kind: 'fixed', tokens: 1 } });
    const whole = simulateServing([group], requests).report;
    const staged = simulateServing([{ ...group, pp: 2 }], requests).report;
    expect(staged.ttft_ms.mean).toBeLessThan(whole.ttft_ms.mean);
  });
});

describe('L in closed form', () => {
  const model = new LatencyModel(group);
  const lengths = { input_tokens: 800, output_tokens: 150 };
  it('comes near the simulation at moderate loads', () => {
    const max = model.maxRate(lengths);
    for (const share of [0.2, 0.5, 0.7]) {
      const rate_per_s = share * max;
      const estimate = model.estimate({ rate_per_s, ...lengths });
      const { report } = simulateServing(
        [group],
        drawRequests({
          ...workload,
          rate_per_s,
          requests: 3000,
          input: { kind: 'fixed', tokens: 800 },
          output: { kind: 'fixed', tokens: 150 },
        }),
      );
      expect(estimate.e2e_ms / report.e2e_ms.mean).toBeGreaterThan(0.75);
      expect(estimate.e2e_ms / report.e2e_ms.mean).toBeLessThan(1.3);
    }
  });
  it('rises with the rate, without a jump that hides overload', () => {
    const max = model.maxRate(lengths);
    let before = 0;
    for (let share = 0.05; share < 2; share += 0.05) {
      const { e2e_ms, utilization } = model.estimate({ rate_per_s: share * max, ...lengths });
      expect(e2e_ms).toBeGreaterThan(before);
      expect(utilization).toBeCloseTo(share, 6);
      before = e2e_ms;
    }
  });
  it('refuses loads that are none', () => {
    expect(() => model.estimate({ rate_per_s: -1, ...lengths })).toThrow(refusal('E_SIMULATION_INPUT'));
    expect(() => model.estimate({ rate_per_s: Number.NaN, ...lengths })).toThrow(
      refusal('E_SIMULATION_INPUT'),
    );
  });
});

describe('workloads', () => {
  it.each([0, 0.5, 1, 3])('have the rate and the CV asked for: %d', (arrival_cv) => {
    const { arrival_s } = drawRequests({ ...workload, arrival_cv, requests: 100_000 });
    const gaps = arrival_s.slice(1).map((at, i) => at - arrival_s[i]!);
    const mean = gaps.reduce((a, b) => a + b, 0) / gaps.length;
    const deviation = Math.sqrt(gaps.reduce((a, b) => a + (b - mean) ** 2, 0) / gaps.length);
    expect(mean * 4).toBeGreaterThan(0.97);
    expect(mean * 4).toBeLessThan(1.03);
    expect(Math.abs(deviation / mean - arrival_cv)).toBeLessThan(0.05 * Math.max(1, arrival_cv));
  });

  it('have the lengths asked for, the same for the same seed', () => {
    const lognormal = {
      ...workload,
      requests: 50_000,
      input: { kind: 'lognormal' as const, mean: 500, cv: 1 },
    };
    const { input_tokens } = drawRequests(lognormal);
    const mean = input_tokens.reduce((a, b) => a + b, 0) / input_tokens.length;
    expect(mean).toBeGreaterThan(485);
    expect(mean).toBeLessThan(515);
    expect(drawRequests(lognormal)).toEqual(drawRequests(lognormal));
    expect(drawRequests({ ...lognormal, seed: 2 })).not.toEqual(drawRequests(lognormal));
  });

  it.each([
    { rate_per_s: -1 },
    { rate_per_s: 0 },
    { rate_per_s: Number.NaN },
    { requests: 0 },
    { requests: 1.5 },
    { arrival_cv: -1 },
    { input: { kind: 'fixed' as const, tokens: 0 } },
    { output: { kind: 'uniform' as const, low: 9, high: 3 } },
    { output: { kind: 'normal' as const, mean: 5, deviation: -1 } },
  ])('refuse %j', (change) => {
    expect(() => drawRequests({ ...workload, ...change })).toThrow(refusal('E_SIMULATION_INPUT'));
  });
});

describe('traces', () => {
  // The first lines of the Azure LLM inference trace 2023 (CC-BY 4.0), and of Mooncake's (Apache-2.0).
  it('are read in the formats of Azure and Mooncake', () => {
    const azure = parseTrace(
      'TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:15:46.6805900,374,44\r\n2023-11-16 18:15:50.9951690,396,109\r\n',
      'azure.csv',
    );
    expect(azure.arrival_s[1]).toBeCloseTo(4.315, 3);
    expect([...azure.output_tokens]).toEqual([44, 109]);
    const mooncake = parseTrace(
      '{"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1]}\n{"timestamp": 3000, "input_length": 10, "output_length": 0}\n{"timestamp": 2500, "input_length": 7, "output_length": 1}\n',
      'mooncake.jsonl',
    );
    expect([...mooncake.arrival_s]).toEqual([0, 2.5]);
    expect([...mooncake.input_tokens]).toEqual([6758, 7]);
  });
  it.each([
    '',
    'a,b,c\n1,2,3\n',
    '{"x": 1}\n',
    '[1]\n',
    '{"timestamp": 0, "input_length": 1, "output_length": 1}\n{oops\n',
    'TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,2\n',
  ])('say what is wrong with %j', (text) => {
    expect(() => parseTrace(text, 'trace')).toThrow(refusal('E_SIMULATION_INPUT'));
  });
});

describe('statistics', () => {
  it('interpolate between order statistics, and leave NaN out', () => {
    expect(quantile(Float64Array.of(1, 2, 3, 4), 0.5)).toBe(2.5);
    expect(distributionOf([3, Number.NaN, 1, 2])).toMatchObject({ mean: 2, p50: 2, max: 3 });
    expect(distributionOf([]).mean).toBeNaN();
  });
  it('weigh values by the samples they stand for', () => {
    expect(weightedDistributionOf([10, 1], [1, 99])).toMatchObject({ p50: 1, p99: 1, max: 10, mean: 1.09 });
  });
});
