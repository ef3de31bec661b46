import { describe, expect, it } from 'vitest';
import { findDevice } from '../../../solver/catalog/devices.ts';
import { findModel } from '../../../solver/catalog/known-models.ts';
import { LatencyModel } from '../../../solver/simulator/latency.ts';
import { simulateServing } from '../../../solver/simulator/simulate.ts';
import {
  gammaShareBelow,
  normalShareBelow,
  settlingWait,
  waitsLonger,
} from '../../../solver/simulator/waiting.ts';
import { drawRequests } from '../../../solver/simulator/workload.ts';

const config = {
  model: findModel('llama-3.1-8b'),
  device: findDevice('A100'),
  engine: 'vllm' as const,
  tp: 1,
  pp: 1,
};
const lengths = { input_tokens: 800, output_tokens: 200 };
const model = new LatencyModel(config);
const top = model.maxRate(lengths);
const loads = [0, 0.01, 0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99, 1, 1.01, 1.2, 2, 10];

describe('the share of requests that meet their targets', () => {
  const share = (load: number, targets: { ttft_ms?: number; tpot_ms?: number }): number =>
    model.attainment({ rate_per_s: load * top, ...lengths }, targets);

  it('is 1 without targets, and lies between 0 and 1', () => {
    for (const load of loads) {
      expect(share(load, {})).toBe(1);
      for (const ttft_ms of [0, 1, 100, 1e4, 1e9])
        for (const tpot_ms of [0, 1, 20, 50, 1e6]) {
          const value = share(load, { ttft_ms, tpot_ms });
          expect(value).toBeGreaterThanOrEqual(0);
          expect(value).toBeLessThanOrEqual(1);
        }
    }
  });

  it('falls with the load and rises with the targets', () => {
    const grid = [
      1, 2, 5, 8, 10, 12, 14, 16, 18, 20, 25, 30, 35, 40, 45, 50, 60, 80, 100, 200, 500, 1e3, 1e4, 1e5, 1e6,
    ];
    for (const kind of ['ttft_ms', 'tpot_ms'] as const) {
      for (const target of grid) {
        const row = loads.map((load) => share(load, { [kind]: target }));
        for (let i = 1; i < row.length; i++)
          expect(row[i], `${kind} ${target} at load ${loads[i]}`).toBeLessThanOrEqual(row[i - 1]! + 1e-6);
      }
      for (const load of loads) {
        const row = grid.map((target) => share(load, { [kind]: target }));
        for (let i = 1; i < row.length; i++)
          expect(row[i], `${kind} ${grid[i]}, load ${load}`).toBeGreaterThanOrEqual(row[i - 1]! - 1e-9);
      }
    }
  });

  it('is all of them far above what is usual, and none far below', () => {
    const usual = model.estimate({ rate_per_s: 0.5 * top, ...lengths });
    expect(share(0.5, { ttft_ms: 10 * usual.ttft_ms, tpot_ms: 3 * usual.tpot_ms })).toBeGreaterThan(0.99);
    expect(share(0.5, { ttft_ms: 0.3 * usual.ttft_ms })).toBe(0);
    expect(share(0.5, { tpot_ms: 0.5 * usual.tpot_ms })).toBe(0);
    expect(share(3, { ttft_ms: 5_000 })).toBeLessThan(0.02);
  });
});

describe('the closed form beside the simulation', () => {
  const kinds = [
    ['llama-3.1-8b', 'A100', 1, 'vllm'],
    ['llama-3.1-8b', 'V100', 2, 'vllm'],
    ['llama-2-13b', 'GH200', 1, 'vllm'],
    ['codellama-34b', 'A100', 4, 'vllm'],
    ['llama-3.3-70b', 'GH200', 4, 'trtllm'],
    ['llama-3.3-70b', 'A100', 8, 'vllm'],
    ['qwen3-30b-a3b', 'A100', 2, 'vllm'],
    ['gpt-oss-120b', 'GH200', 1, 'vllm'],
    ['llama-3.1-8b', 'A100', 1, 'vllm-v0'],
    ['llama-3.1-8b', 'Xeon-8480+', 1, 'openvino'],
  ] as const;
  const rows = kinds.flatMap(([name, device, tp, engine]) => {
    const group = { model: findModel(name), device: findDevice(device), engine, tp, pp: 1, dp: 1 };
    const closed = new LatencyModel(group);
    return [
      [800, 200],
      [200, 400],
      [4000, 100],
    ].flatMap(([input_tokens, output_tokens]) => {
      const sizes = { input_tokens: input_tokens!, output_tokens: output_tokens! };
      const fixed = {
        input: { kind: 'fixed' as const, tokens: input_tokens! },
        output: { kind: 'fixed' as const, tokens: output_tokens! },
      };
      const max = closed.maxRate(sizes);
      const flood = { rate_per_s: 1e6, arrival_cv: 0, requests: 1500, seed: 1, ...fixed };
      const finishes = simulateServing([group], drawRequests(flood)).e2e_s.sort();
      const capacity = 750 / (finishes[1125]! - finishes[375]!);
      return [0.1, 0.3, 0.5, 0.7, 0.9].map((share) => {
        const rate_per_s = share * max;
        const workload = { rate_per_s, arrival_cv: 1, requests: 2000, seed: 3, ...fixed };
        const { report, ttft_s, tpot_s } = simulateServing([group], drawRequests(workload));
        const load = { rate_per_s, ...sizes };
        const estimate = closed.estimate(load);
        const targets = { ttft_ms: 2 * estimate.ttft_ms, tpot_ms: 1.1 * estimate.tpot_ms };
        const met = (values: Float64Array, most_ms: number): number =>
          values.filter((value) => value * 1e3 <= most_ms).length / values.length;
        return {
          share,
          capacity: max / capacity - 1,
          ttft: estimate.ttft_ms / report.ttft_ms.mean - 1,
          tpot: estimate.tpot_ms / report.tpot_ms.mean - 1,
          e2e: estimate.e2e_ms / report.e2e_ms.mean - 1,
          ttft_met: closed.attainment(load, { ttft_ms: targets.ttft_ms }) - met(ttft_s, targets.ttft_ms),
          tpot_met: closed.attainment(load, { tpot_ms: targets.tpot_ms }) - met(tpot_s, targets.tpot_ms),
        };
      });
    });
  });
  type Column = 'capacity' | 'ttft' | 'tpot' | 'e2e' | 'ttft_met' | 'tpot_met';
  const median = (column: Column, keep: (share: number) => boolean = () => true): number => {
    const errors = rows.filter(({ share }) => keep(share)).map((row) => Math.abs(row[column]));
    return errors.sort((a, b) => a - b)[errors.length >> 1]!;
  };

  it.each([
    ['capacity', 0.02],
    ['ttft', 0.05],
    ['tpot', 0.04],
    ['e2e', 0.04],
    ['ttft_met', 0.05],
    ['tpot_met', 0.08],
  ] as const)('has a median error of %s of at most %d', (column, most) => {
    console.log(
      `closed form against simulation, ${rows.length} cases: median error of ${column} ${(100 * median(column)).toFixed(1)}%, at 90% load ${(100 * median(column, (share) => share === 0.9)).toFixed(1)}%`,
    );
    expect(median(column)).toBeLessThan(most);
  });

  it('is off by no more than a quarter anywhere up to 70% load', () => {
    for (const { share, tpot, e2e } of rows)
      if (share <= 0.7) {
        expect(Math.abs(tpot)).toBeLessThan(0.25);
        expect(Math.abs(e2e)).toBeLessThan(0.25);
      }
  });
});

describe('power', () => {
  it('grows from idle to the limit, for all devices of the replica', () => {
    const watts = loads.map((load) => model.estimate({ rate_per_s: load * top, ...lengths }).power_w);
    for (let i = 1; i < watts.length; i++) expect(watts[i]).toBeGreaterThanOrEqual(watts[i - 1]! - 1e-9);
    expect(watts[0]).toBeCloseTo(0.15 * 400, 6);
    expect(watts.at(-1)).toBeLessThanOrEqual(400);
    expect(watts.at(-1)).toBeGreaterThan(240);
    const two = new LatencyModel({ ...config, tp: 2 });
    expect(two.estimate({ rate_per_s: 0, ...lengths }).power_w).toBeCloseTo(2 * 60, 6);
  });
});

describe('speed', () => {
  it('is far below what a search over thousands of options needs', () => {
    const median = (run: () => void, turns: number): number => {
      const times = Array.from({ length: turns }, () => {
        const start = performance.now();
        run();
        return performance.now() - start;
      });
      return times.sort((a, b) => a - b)[turns >> 1]!;
    };
    let rate = 0;
    expect(median(() => void new LatencyModel(config), 51)).toBeLessThan(1);
    const built = new LatencyModel(config);
    const estimate = (): void => {
      rate += 0.01;
      built.estimate({ rate_per_s: rate, ...lengths });
    };
    expect(median(estimate, 501)).toBeLessThan(0.1);
  });
});

describe('waiting', () => {
  it('has the tails of its distributions', () => {
    const none = { probability: 0, mean_s: 0 };
    const a = { probability: 0.5, mean_s: 2 };
    expect(waitsLonger(a, none, 2)).toBeCloseTo(0.5 * Math.exp(-1), 12);
    expect(waitsLonger(none, none, 0)).toBe(0);
    expect(waitsLonger(a, none, -1)).toBe(1);
    const certain = (mean_s: number) => ({ probability: 1, mean_s });
    // Erlang-2: (1 + x/m) e^(−x/m), also in the limit of nearly equal means.
    for (const other of [3, 3 * (1 + 1e-8), 3 * (1 + 1e-4)])
      expect(waitsLonger(certain(3), certain(other), 5)).toBeCloseTo((1 + 5 / 3) * Math.exp(-5 / 3), 3);
    expect(waitsLonger(certain(4), certain(1), 3)).toBeCloseTo((4 * Math.exp(-3 / 4) - Math.exp(-3)) / 3, 12);
  });
  it('knows the normal and the Gamma distribution', () => {
    expect(normalShareBelow(1.96)).toBeCloseTo(0.975, 4);
    expect(normalShareBelow(-1)).toBeCloseTo(0.158655, 5);
    // Exponential with mean 2, and Erlang-4 with mean 4.
    expect(gammaShareBelow(3, 2, 4)).toBeCloseTo(1 - Math.exp(-1.5), 2);
    expect(gammaShareBelow(4, 4, 4)).toBeCloseTo(0.56653, 3);
    expect(gammaShareBelow(1, 1, 0)).toBe(1);
  });
  it('is that of M/M/1 with one place, and finite at saturation', () => {
    const { probability, mean_s } = settlingWait(0.5, 50, 0.5, 25);
    expect(probability).toBe(0.5);
    expect(mean_s).toBeCloseTo(0.04, 3);
    expect(settlingWait(1, 5, 1, 5).mean_s).toBeLessThan(100);
    expect(settlingWait(0, 5, 0, 0)).toEqual({ probability: 0, mean_s: 0 });
  });
});
