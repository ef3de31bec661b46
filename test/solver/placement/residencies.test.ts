/** `weights: reuse` and `auto`: what models that give way to one another take, and where a plan lets weights lie. */
import { describe, expect, it } from 'vitest';
import { arrangementCost } from '../../../solver/placement/arrangement-cost.ts';
import { checkPlacement } from '../../../solver/placement/check.ts';
import { LatencyEstimator } from '../../../solver/placement/latency-estimator.ts';
import { place, replicaCosts } from '../../../solver/placement/placement.ts';
import { placeWithResidencies } from '../../../solver/placement/residencies.ts';
import { modelSchema } from '../../../spec/model-yaml.ts';
import type { Placement, PlacementModel, Residency, RunningReplicas } from '../../../spec/plan.ts';
import { ask, cpus, gguf, gpus, llama, planOf, type Size } from './support.ts';

const gib = 2 ** 30;
const native = { engines: { native: { available: true } } } as const;
const workload = (rate_per_s: number) => ({ rate_per_s, input_tokens: 100, output_tokens: 100 });
const asked = (name: string, size: Size, rate_per_s: number, more: object = {}): PlacementModel =>
  gguf(name, size, {
    context_tokens: 2048,
    max_sequences: 1,
    workload: workload(rate_per_s),
    weights: 'auto',
    ...more,
  });
/** A GPU on which one model of 37 GiB may lie. */
const one = gpus('A100-80GB', 70, 1, { ...native, count: 1 });
const unitsOf = ({ launches }: Placement) => launches.flatMap(({ units }) => units);
const weightsOf = (placement: Placement): Record<string, string> =>
  Object.fromEntries(unitsOf(placement).map(({ model }) => [model.name, model.weights]));

describe('models whose weights give way to others', () => {
  /** Of 13 B: 6.8 GiB of weights, and 1.6 GiB of KV. */
  const four = (weights: string) =>
    ['a', 'b', 'c', 'd'].map((name) => asked(name, '13b', 0.001, { weights }));
  const offer = gpus('A100-80GB', 20, 1, { ...native, count: 1 });

  it('have the memory of two of them, however many they are', () => {
    expect(place(ask(four('resident'), [offer])).unplaced).not.toEqual([]);
    const question = ask(four('reuse'), [offer]);
    const placement = place(question);
    expect(placement.unplaced).toEqual([]);
    expect(checkPlacement(question, placement)).toEqual([]);
    const units = unitsOf(placement);
    expect(checkPlacement(ask(four('resident'), [offer]), placement).join()).toMatch(
      /weights of a-0 are reuse where resident was asked for/,
    );
    const { device_bytes } = units[0]!.memory!;
    for (const { memory, model } of units) {
      expect(model.weights).toBe('reuse');
      expect(Math.abs(memory!.reuse_bytes! - 2 * device_bytes)).toBeLessThan(3);
    }
    expect(planOf(placement, 'a').reasons.join()).toMatch(
      /weights: reuse: .* loaded in \d+ ms at least \(PCIe 4\.0 x16, 27 GB\/s assumed\)/,
    );
    const tight = gpus('A100-80GB', 16, 1, { ...native, count: 1 });
    expect(place(ask(four('reuse'), [tight])).unplaced).not.toEqual([]);
    // The checker knows the rule by itself.
    units[0]!.weight_bytes = units[1]!.weight_bytes = 9.5 * gib;
    expect(checkPlacement(question, placement).join()).toMatch(/device 0: \d+ bytes of/);
  });

  it('have it of the host on CPUs', () => {
    const on = (weights: string) =>
      place(ask(four(weights), [cpus('Xeon-8480', 1, ['avx512f'], { memory_bytes: 96 * gib })]));
    const [reused, lying] = [on('reuse'), on('resident')].map((placement) => {
      expect(placement.launches).toHaveLength(1);
      return placement.launches[0]!;
    });
    const { device_bytes, reuse_bytes } = reused!.units[0]!.memory!;
    const overhead_bytes = ask([], []).settings.host_overhead_bytes;
    expect(Math.abs(reused!.memory_bytes_per_node - overhead_bytes - reuse_bytes!)).toBeLessThan(3);
    expect(lying!.memory_bytes_per_node).toBeGreaterThan(3.9 * device_bytes);
  });

  it('are refused to engines that keep their memory', () => {
    const vllm = gpus('A100-80GB', 80, 1);
    const { unplaced, rejected } = place(ask([llama('m', '8b', { weights: 'reuse' })], [vllm]));
    expect(unplaced).toEqual([{ model: 'm', replicas: 1 }]);
    expect(rejected[0]!.because).toMatch(/does not give its weights up for other models/);
    const split = { name: 'm', source: '/m', weights: 'reuse', parallel: { pipeline: 2 } };
    expect(modelSchema.safeParse(split).error?.issues[0]?.path).toEqual(['weights']);
  });
});

describe('models whose weights lie where the plan lets them', () => {
  it('are planned as those are whose weights lie on their device, where all have room', () => {
    const plan = (weights: string) => place(ask([asked('m', '70b', 0.01, { weights })], [one]));
    const [open, lying] = [plan('auto'), plan('resident')];
    expect(open.launches).toEqual(lying.launches);
    expect(open.models[0]!.reasons[0]).toBe('weights: auto: resident: the devices hold all models so');
    expect(open.models[0]!.groups).toEqual(lying.models[0]!.groups);
    const vllm = gpus('A100-80GB', 80, 1);
    const folder = place(ask([llama('m', '8b', { weights: 'auto' })], [vllm]));
    expect(unitsOf(folder)[0]).toMatchObject({ engine: 'vllm', model: { weights: 'resident' } });
  });

  it('are streamed of the long tail, and lie on the device where they are asked most', () => {
    const question = ask([asked('tail', '70b', 1e-4), asked('head', '70b', 0.02)], [one]);
    const placement = place(question);
    expect(placement.unplaced).toEqual([]);
    expect(weightsOf(placement)).toEqual({ head: 'resident', tail: 'streamed' });
    const [why] = planOf(placement, 'tail').reasons;
    expect(why).toMatch(
      /^weights: auto: streamed: a request takes \d+ s, resident \d+ ms and 4\d\.\d GB more/,
    );
    expect(why).toMatch(
      /\(resident 3\d\.\d GiB and [\d.]+ m?s a request, reuse [\d.]+ MiB on average and [\d.]+ s a request, streamed [\d.]+ GiB and [\d.]+ s a request\)$/,
    );
    const swapped = place(ask([asked('tail', '70b', 0.02), asked('head', '70b', 1e-4)], [one]));
    expect(weightsOf(swapped)).toEqual({ head: 'streamed', tail: 'resident' });
  });

  it('are streamed where a device is smaller than they are', () => {
    const question = ask([asked('m', '70b', 0.001)], [gpus('T4', 16, 1, { ...native, count: 1 })]);
    const placement = place(question);
    expect(weightsOf(placement)).toEqual({ m: 'streamed' });
    expect(unitsOf(placement)[0]!.memory!.arena_bytes).toBeGreaterThan(0);
    // What an arrangement costs is counted by what it has.
    expect(arrangementCost(question, placement.launches)).toBeGreaterThan(0);
    expect(replicaCosts(question, () => 1).get('m')).toHaveLength(1);
  });

  it('keep what is promised: no load before a first token that is due, no streaming where tokens are', () => {
    const on = (slo: { ttft_ms: number; tpot_ms: number }) => {
      const four = ['a', 'b', 'c', 'd'].map((name) => asked(name, '13b', 0.001, { slo }));
      return Object.values(weightsOf(place(ask(four, [gpus('A100-80GB', 20, 1, { ...native, count: 1 })]))));
    };
    expect(on({ ttft_ms: 5000, tpot_ms: 100 })).toEqual(['reuse', 'reuse', 'reuse', 'reuse']);
    const soon = on({ ttft_ms: 150, tpot_ms: 5000 });
    expect(soon).toHaveLength(4);
    expect(soon).toContain('streamed');
    expect(soon).not.toContain('reuse');
  });

  it('count a sensitivity to loads only where there are loads', () => {
    const sensitive = asked('m', '70b', 0.001, { latency_sensitivity: 3 });
    const placement = place(ask([sensitive], [gpus('T4', 16, 1, { ...native, count: 1 })]));
    const { model } = unitsOf(placement)[0]!;
    expect(modelSchema.safeParse({ ...model, source: '/m' }).success).toBe(true);
    const roomy = place(ask([sensitive], [one]));
    expect(unitsOf(roomy)[0]!.model.latency_sensitivity).toBe(3);
  });

  it('stay as they run, unless much is gained', () => {
    const running = (head: string, tail: string) =>
      (
        [
          ['head', head],
          ['tail', tail],
        ] as const
      ).map(([model, weights]) => ({
        model,
        weights: weights as 'streamed' | 'resident',
        node_kind: one.node_kind,
        replicas: 1,
        device_count: 1,
      }));
    const plan = (head_per_s: number, tail_per_s: number) => {
      const question = ask([asked('head', '70b', head_per_s), asked('tail', '70b', tail_per_s)], [one], {
        running: running('resident', 'streamed'),
      });
      return place(question);
    };
    const placement = plan(0.001, 0.0011);
    expect(weightsOf(placement)).toEqual({ head: 'resident', tail: 'streamed' });
    expect(planOf(placement, 'tail').reasons[0]).toMatch(/^weights: auto: streamed: it runs so, and another/);
    expect(weightsOf(plan(1e-4, 0.02))).toEqual({ head: 'streamed', tail: 'resident' });
  });

  it('stay as most of their replicas run, whichever comes last, and that is tried first', () => {
    const with_weights = (...all: Residency[]) =>
      all.map((weights) => ({
        model: 'm',
        weights,
        node_kind: one.node_kind,
        replicas: 1,
        device_count: 1,
      }));
    const tried = (running: RunningReplicas[]): string[] => {
      const weights: string[] = [];
      const question = ask([asked('m', '13b', 0.01)], [one], { running });
      placeWithResidencies(question, new LatencyEstimator(), (settled) => {
        weights.push(settled.models[0]!.spec.weights);
        return place(settled);
      });
      return weights;
    };
    expect(tried(with_weights('streamed', 'streamed', 'resident'))[0]).toBe('streamed');
    expect(tried(with_weights('reuse', 'streamed', 'reuse'))[0]).toBe('reuse');
    // Where they run so and all have room, there is nothing else to try.
    expect(tried(with_weights('resident', 'resident', 'streamed'))).toEqual(['resident']);
  });

  it('are told as not placed where nothing holds them', () => {
    const placement = place(ask([asked('m', '70b', 0.001)], [gpus('T4', 1, 1, { ...native, count: 1 })]));
    expect(placement.unplaced).toEqual([{ model: 'm', replicas: 1 }]);
  });
});
