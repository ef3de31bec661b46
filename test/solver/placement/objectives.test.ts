import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { LatencyEstimator } from '../../../solver/placement/latency-estimator.ts';
import { shapeOf } from '../../../solver/placement/model-facts.ts';
import { objectiveCost } from '../../../solver/placement/objective.ts';
import { type PlacementOption, placementOptions } from '../../../solver/placement/options.ts';
import { place } from '../../../solver/placement/placement.ts';
import { objectiveNames } from '../../../spec/model-yaml.ts';
import type { NodeKindOffer, PlacementQuestion } from '../../../spec/plan.ts';
import { ask, cpus, gguf, gpus, llama, planOf, where } from './support.ts';

const heavy = { rate_per_s: 40, input_tokens: 1024, output_tokens: 256 };
const kinds = (): NodeKindOffer[] => [gpus('V100', 32, 4), gpus('A100-80GB', 80, 6), gpus('GH200', 96, 8)];

describe('objectives', () => {
  it('latency takes the fastest device and splits a replica where that pays', () => {
    const plan = place(
      ask([llama('m', '8b', { workload: heavy, replicas: 2 })], kinds(), { objective: 'latency' }),
    );
    expect(where(plan, 'm')).toEqual({ gh200: 2 });
    expect(plan.launches[0]!.units[0]!.tensor).toBeGreaterThan(1);
    expect(plan.objective).toBe('latency');
  });

  it('gpu-hours takes the fewest GPUs with which the SLO holds, and more where it is tight', () => {
    const loose = { ttft_ms: 5000, tpot_ms: 200 };
    const tight = { ttft_ms: 200, tpot_ms: 8 };
    const gpusFor = (slo: object): number =>
      place(
        ask([llama('m', '8b', { workload: heavy, replicas: 'auto', slo, max_sequences: 128 })], kinds(), {
          objective: 'gpu-hours',
        }),
      ).gpu_count;
    expect(gpusFor(loose)).toBeLessThan(gpusFor(tight));
  });

  it('energy draws the fewest watts of all four', () => {
    const watts = objectiveNames.map((objective) => {
      const asked = llama('m', '13b', { workload: { ...heavy, rate_per_s: 6 }, replicas: 'auto' });
      const plan = place(ask([asked], kinds(), { objective }));
      return {
        objective,
        power_w: planOf(plan, 'm').groups.reduce((sum, group) => sum + group.predicted!.power_w, 0),
      };
    });
    const energy = watts.find(({ objective }) => objective === 'energy')!;
    expect(Math.min(...watts.map(({ power_w }) => power_w))).toBe(energy.power_w);
  });

  it('slo spends devices on requests that would miss it, and none beyond', () => {
    const asked = (tpot_ms: number) =>
      llama('m', '70b', { workload: { ...heavy, rate_per_s: 0.2 }, slo: { ttft_ms: 2000, tpot_ms } });
    const relaxed = planOf(place(ask([asked(200)], kinds())), 'm').groups[0]!;
    const pressed = planOf(place(ask([asked(25)], kinds())), 'm').groups[0]!;
    expect(relaxed.predicted!.slo_attainment).toBeGreaterThan(0.95);
    expect(pressed.predicted!.slo_attainment).toBeGreaterThan(0.95);
    expect(relaxed.tensor).toBeLessThan(pressed.tensor);
  });

  it('costs what the best of all choices costs', () => {
    // One device a node, so that counting devices is the whole truth; the judge tries every choice there is.
    const sizes = ['1b', '8b', '13b'] as const;
    const arbitrary = fc.record({
      objective: fc.constantFrom(...objectiveNames),
      models: fc.array(
        fc.record({ size: fc.constantFrom(...sizes), replicas: fc.integer({ min: 1, max: 3 }) }),
        { minLength: 1, maxLength: 3 },
      ),
      counts: fc.tuple(...Array.from({ length: 3 }, () => fc.integer({ min: 0, max: 4 }))),
      rate_per_s: fc.double({ min: 0.1, max: 20, noNaN: true }),
    });
    let optimal = 0;
    fc.assert(
      fc.property(arbitrary, ({ objective, models, counts, rate_per_s }) => {
        const one = { count: 1 };
        const question = ask(
          models.map(({ size, replicas }, at) =>
            llama(`m${at}`, size, { replicas, workload: { ...heavy, rate_per_s } }),
          ),
          [
            gpus('V100', 32, counts[0]!, one),
            gpus('A100-80GB', 80, counts[1]!, { ...one, nodes_idle: 1 }),
            gpus('GH200', 96, counts[2]!, { ...one, tier: 'scavenger' }),
          ],
          { objective },
        );
        const plan = place(question);
        const judged = enumerate(question);
        if (judged === undefined) {
          expect(plan.unplaced.length).toBeGreaterThan(0);
          return;
        }
        expect(plan.unplaced).toEqual([]);
        expect(plan.search.status).toBe('optimal');
        optimal++;
        const cost = judged.costOf(
          plan.models.flatMap(({ model, groups }) => groups.map((group) => ({ model, ...group }))),
        );
        expect(cost).toBeLessThanOrEqual(judged.best * (1 + 1e-4) + 1e-6);
      }),
      { numRuns: 60 },
    );
    expect(optimal).toBeGreaterThan(15);
  });
});

/** Least cost over every division of every model's replicas over the options there are. */
function enumerate(question: PlacementQuestion) {
  const estimator = new LatencyEstimator();
  const byModel = new Map<string, PlacementOption[]>();
  for (const model of question.models)
    byModel.set(
      model.spec.name,
      question.node_kinds.flatMap((offer) => {
        const found = placementOptions(model, shapeOf(model), offer, question);
        return 'constraint' in found ? [] : found;
      }),
    );
  const cost = objectiveCost(question, estimator, byModel);
  const names = [...byModel.keys()];
  let best = Number.POSITIVE_INFINITY;
  const left = new Map(question.node_kinds.map((offer) => [offer, offer.nodes_total]));
  const visit = (at: number, sum: number): void => {
    if (at === names.length) {
      best = Math.min(best, sum);
      return;
    }
    const options = byModel.get(names[at]!)!;
    const all = question.models[at]!.spec.replicas as number;
    const divide = (index: number, missing: number, so_far: number): void => {
      if (missing === 0) visit(at + 1, so_far);
      if (missing === 0 || index === options.length) return;
      const option = options[index]!;
      for (let count = 0; count <= missing && count <= left.get(option.offer)!; count++) {
        left.set(option.offer, left.get(option.offer)! - count);
        divide(index + 1, missing - count, so_far + (count > 0 ? cost(option, count, count / all) : 0));
        left.set(option.offer, left.get(option.offer)! + count);
      }
    };
    divide(0, all, sum);
  };
  visit(0, 0);
  if (best === Number.POSITIVE_INFINITY) return undefined;
  const costOf = (
    groups: { model: string; node_kind: string; tensor: number; replicas: number; traffic_share: number }[],
  ) =>
    groups.reduce((sum, { model, node_kind, tensor, replicas, traffic_share }) => {
      const option = byModel
        .get(model)!
        .find((each) => each.offer.node_kind === node_kind && each.tensor === tensor)!;
      return sum + cost(option, replicas, traffic_share);
    }, 0);
  return { best, costOf };
}

describe('replicas: auto', () => {
  it('follows the workload', () => {
    const replicas = [10, 40, 160].map((rate_per_s) =>
      planOf(
        place(
          ask(
            [llama('m', '8b', { replicas: 'auto', max_sequences: 128, workload: { ...heavy, rate_per_s } })],
            kinds(),
          ),
        ),
        'm',
      ).groups.reduce((sum, group) => sum + group.replicas * group.tensor, 0),
    );
    expect(replicas[0]).toBeLessThan(replicas[1]!);
    expect(replicas[1]).toBeLessThan(replicas[2]!);
  });

  it('keeps up with it, and deals requests out by what each kind takes', () => {
    const model = llama('m', '8b', {
      replicas: 'auto',
      max_sequences: 128,
      workload: { ...heavy, rate_per_s: 88 },
    });
    const plan = place(ask([model], [gpus('A100-80GB', 80, 1), gpus('GH200', 96, 1)]));
    const { groups } = planOf(plan, 'm');
    expect(groups.length).toBe(2);
    expect(groups.reduce((sum, group) => sum + group.traffic_share, 0)).toBeCloseTo(1, 9);
    for (const { predicted } of groups) expect(predicted!.utilization).toBeLessThan(1);
    const of = (kind: string) => groups.find(({ node_kind }) => node_kind === kind)!;
    expect(of('gh200').traffic_share).toBeGreaterThan(of('a100-80gb').traffic_share);
  });

  it('says so where all there is does not keep up', () => {
    const model = llama('m', '70b', { replicas: 'auto', workload: { ...heavy, rate_per_s: 200 } });
    const plan = place(ask([model], [gpus('A100-80GB', 80, 1)]));
    expect(plan.unplaced).toEqual([]);
    expect(plan.warnings.join()).toMatch(/200 requests\/s is more than the replicas take/);
  });

  it('leaves no model without a replica where all of them together want more than there is', () => {
    const models = (['8b', '13b', '70b'] as const).map((size) =>
      llama(size, size, { replicas: 'auto', workload: { ...heavy, rate_per_s: 150 } }),
    );
    for (const objective of ['slo', 'latency'] as const) {
      const plan = place(ask(models, [gpus('A100-80GB', 80, 3), gpus('GH200', 96, 3)], { objective }));
      expect(plan.unplaced).toEqual([]);
      expect(plan.search.status).not.toBe('first_fit');
      for (const { spec } of models) expect(planOf(plan, spec.name).replicas).toBeGreaterThan(0);
      expect(plan.warnings.join()).toMatch(/150 requests\/s is more than the replicas take/);
    }
  });

  it('is one where nothing is known of the workload', () => {
    const plan = place(ask([llama('m', '8b', { replicas: 'auto' })], kinds()));
    expect(planOf(plan, 'm')).toMatchObject({ replicas: 1, workload: { source: 'assumed' } });
    expect(plan.launches[0]!.units[0]!.model).toMatchObject({ replicas: 1 });
  });
});

describe('splitting a replica', () => {
  it('divides heads, stays in a node, and is as small as memory allows unless speed is asked for', () => {
    const six = gpus('V100', 32, 2, { count: 6 });
    const plan = place(ask([llama('m', '70b', { context_tokens: 2048 })], [six]));
    // 132 GiB over 32 GiB devices: four are too few, five and six do not divide 64 heads.
    expect(plan.unplaced).toEqual([{ model: 'm', replicas: 1 }]);
    const eight = place(ask([llama('m', '70b')], [gpus('V100', 32, 2, { count: 8 })]));
    expect(eight.launches[0]!.units[0]).toMatchObject({ tensor: 8, device_count: 8 });
  });

  it('refuses a degree that does not divide the heads', () => {
    const plan = place(ask([llama('m', '8b', { parallel: { tensor: 3 } })], kinds()));
    expect(plan.rejected.map(({ constraint }) => constraint)).toContain('tensor_divides_heads');
    expect(plan.rejected[0]!.because).toMatch(/tensor 3 does not divide the 32 heads/);
  });

  it('names what a model needs and the largest group there is', () => {
    const plan = place(ask([llama('llama-70b', '70b')], [gpus('RTX-3090', 24, 3)]));
    expect(plan.too_large).toHaveLength(1);
    expect(plan.too_large[0]!.because).toMatch(
      /llama-70b in BF16 needs 131\.5 GiB .* the largest group of devices here is 4 × 24\.0 GiB \(RTX-3090\)/,
    );
  });

  it('keeps a replica on one MIG slice', () => {
    const slices = gpus('A100-80GB', 20, 2, {
      devices: { kind: 'mig', model: 'A100 2g.20gb', count: 3, memory_bytes: 20 * 1024 ** 3 },
    });
    const plan = place(ask([llama('m', '1b', { replicas: 4 })], [slices]));
    expect(plan.launches.map(({ devices_per_node }) => devices_per_node)).toMatchObject([
      { kind: 'mig', count: 3 },
      { kind: 'mig', count: 1 },
    ]);
    expect(planOf(plan, 'm').groups[0]!.predicted!.tpot_ms).toBeGreaterThan(0);
    const split = place(ask([llama('m', '1b', { parallel: { tensor: 2 } })], [slices]));
    expect(split.rejected[0]).toMatchObject({ constraint: 'parallel_unsupported' });
  });
});

describe('precision', () => {
  it('is fp16 where a device has no bf16, with the reason', () => {
    const plan = place(ask([llama('m', '8b')], [gpus('V100', 32, 1)]));
    expect(plan.launches[0]!.units[0]!.model.precision).toBe('fp16');
    expect(planOf(plan, 'm').reasons.join()).toMatch(/V100\S* \(compute capability 7\.0\) has no bf16/);
  });

  it('is chosen from precision_choices where that is what fits', () => {
    const asked = { precision_choices: ['fp8'], parallel: { tensor: 1 } };
    const small = gpus('L40S', 48, 1);
    const plan = place(ask([llama('m', '8b', asked)], [small]));
    expect(plan.launches[0]!.units[0]!.model.precision).toBe('auto');
    const tight = place(ask([llama('m', '13b', { ...asked, max_sequences: 4 })], [gpus('L4', 24, 1)]));
    expect(tight.launches[0]!.units[0]!.model.precision).toBe('fp8');
    expect(tight.launches[0]!.units[0]!.weight_bytes).toBeLessThan(15e9);
  });

  it('rejects devices that cannot compute what the files hold', () => {
    const model = llama('m', '8b', { precision: 'fp8' });
    const plan = place(ask([model], [gpus('V100', 32, 1)]));
    expect(plan.rejected[0]).toMatchObject({ constraint: 'device_capability', needed: 8, available: 7 });
  });
});

describe('what else weighs', () => {
  it('keeps so many replicas on stable nodes as asked', () => {
    const scavengers = gpus('GH200', 96, 8, { tier: 'scavenger' });
    const stable = gpus('V100', 32, 8);
    const fast = { objective: 'latency' as const };
    const free = place(ask([llama('m', '8b', { replicas: 4 })], [stable, scavengers], fast));
    expect(where(free, 'm')).toEqual({ gh200: 4 });
    const held = place(
      ask([llama('m', '8b', { replicas: 4, min_stable_replicas: 2 })], [stable, scavengers], fast),
    );
    expect(where(held, 'm')).toEqual({ gh200: 2, v100: 2 });
  });

  it('uses what is free of nodes that are partly taken', () => {
    const taken = gpus('GH200', 96, 2, { nodes_idle: 0, free: [{ nodes: 1, devices: 2, cpus: 32 }] });
    const asked = (replicas: number) => llama('m', '8b', { replicas, parallel: { tensor: 1 } });
    const other = gpus('A100-80GB', 80, 4, { nodes_idle: 4, free: [{ nodes: 4, devices: 4, cpus: 64 }] });
    const fast = { objective: 'latency' as const };
    expect(where(place(ask([asked(2)], [taken, other], fast)), 'm')).toEqual({ gh200: 2 });
    expect(where(place(ask([asked(3)], [taken, other], fast)), 'm')).toEqual({ 'a100-80gb': 1, gh200: 2 });
  });

  it('weighs how long a job would wait where that is known', () => {
    const asked = [llama('m', '8b', { parallel: { tensor: 1 } })];
    const at = (queue_wait_s: number): string[] => {
      const busy = gpus('GH200', 96, 2, { nodes_idle: 0, queue_wait_s });
      const free = gpus('A100-80GB', 80, 2, { nodes_idle: 2, queue_wait_s: 0 });
      return Object.keys(where(place(ask(asked, [busy, free], { objective: 'latency' })), 'm'));
    };
    expect(at(60)).toEqual(['gh200']);
    expect(at(4 * 3600)).toEqual(['a100-80gb']);
  });

  it('takes CPUs with AMX before those without, and GPUs where CPUs miss the SLO', () => {
    const amx = cpus('Xeon-8480+', 2, ['amx_bf16', 'avx512_bf16']);
    const old = cpus('EPYC-7742', 2, ['avx2']);
    const model = gguf('m', '8b', { workload: { rate_per_s: 0.1, input_tokens: 256, output_tokens: 64 } });
    expect(Object.keys(where(place(ask([model], [old, amx], { objective: 'latency' })), 'm'))).toEqual([
      'xeon-8480+',
    ]);
    const pressed = { ...model, spec: { ...model.spec, slo: { ttft_ms: 100, tpot_ms: 20 } } };
    const gpu = gpus('A100-80GB', 80, 1, { engines: { native: { available: true } } });
    expect(Object.keys(where(place(ask([pressed], [amx, gpu])), 'm'))).toEqual(['a100-80gb']);
    expect(Object.keys(where(place(ask([model], [amx, gpu])), 'm'))).toEqual(['xeon-8480+']);
  });

  it('lets native models share a device where devices do not suffice, by the optimiser', () => {
    const models = ['a', 'b', 'c', 'd'].map((name) => gguf(name, '1b', { max_sequences: 1 }));
    const plan = place(ask(models, [cpus('Xeon-8480+', 2, ['amx_bf16'])]));
    expect(plan.unplaced).toEqual([]);
    expect(plan.launches).toHaveLength(2);
    expect(plan.search.status).not.toBe('first_fit');
  });
});

describe('nodes', () => {
  const pool = { id: 'gh200+scavenge', nodes: 2 };
  const twins = (): NodeKindOffer[] => [
    gpus('GH200', 96, 2, { pool }),
    gpus('GH200', 96, 2, { node_kind: 'scavenge', tier: 'scavenger', pool }),
    gpus('A100-80GB', 80, 1),
  ];

  it('that two kinds stand for are given once', () => {
    const model = llama('m', '8b', { replicas: 'auto', workload: { ...heavy, rate_per_s: 2000 } });
    const plan = place(ask([model], twins()));
    const onPool = plan.launches.filter(({ node_kind }) => node_kind !== 'a100-80gb');
    expect(onPool.length).toBeLessThanOrEqual(2);
    const eight = llama('m', '8b', { replicas: 8, parallel: { tensor: 1 }, devices: { models: ['GH200'] } });
    expect(place(ask([eight], twins())).unplaced).toEqual([]);
    const nine = llama('m', '8b', { replicas: 9, parallel: { tensor: 1 }, devices: { models: ['GH200'] } });
    expect(place(ask([nine], twins())).unplaced).toEqual([{ model: 'm', replicas: 1 }]);
  });

  it('that are partly taken get jobs as large as what is free on each', () => {
    const holes = {
      nodes_idle: 0,
      free: [
        { nodes: 1, devices: 2, cpus: 32 },
        { nodes: 1, devices: 3, cpus: 48 },
      ],
    };
    const five = llama('m', '8b', { replicas: 5, parallel: { tensor: 1 } });
    const plan = place(ask([five], [gpus('GH200', 96, 4, holes)]));
    expect(plan.launches.map(({ devices_per_node }) => devices_per_node.count)).toEqual([3, 2]);
    // One more waits for a whole node.
    const six = { ...five, spec: { ...five.spec, replicas: 6 } };
    const waiting = place(ask([six], [gpus('GH200', 96, 4, holes)]));
    expect(waiting.launches.map(({ devices_per_node }) => devices_per_node.count)).toEqual([3, 2, 1]);
  });

  it('that do not keep up share the load by what they take', () => {
    const model = llama('m', '8b', {
      replicas: 'auto',
      workload: { ...heavy, rate_per_s: 400 },
      max_sequences: 64,
    });
    const { groups } = planOf(place(ask([model], [gpus('GH200', 96, 1), gpus('A100-80GB', 80, 1)])), 'm');
    const loads = groups.map(({ predicted }) => predicted!.utilization);
    expect(Math.max(...loads) / Math.min(...loads)).toBeLessThan(1.3);
  });
});

describe('runners-up', () => {
  const plan = place(
    ask(
      [llama('m', '8b', { workload: heavy, replicas: 2 })],
      [...kinds(), gpus('L40S', 48, 2, { tier: 'scavenger' })],
    ),
  );
  const { runners_up } = planOf(plan, 'm');

  it('are the next best, with what each would cost and why it was not taken', () => {
    expect(runners_up.length).toBeGreaterThan(2);
    const ratios = runners_up.map(({ cost_ratio }) => cost_ratio);
    expect(ratios).toEqual([...ratios].sort((a, b) => a - b));
    expect(plan.search.status).toBe('optimal');
    for (const runner of runners_up) {
      expect(runner.because).not.toBe('');
      if (!runner.because.startsWith('needs')) expect(runner.cost_ratio).toBeGreaterThan(0.999);
    }
  });

  it('say what is missing where there is no room for them', () => {
    const crowded = place(
      ask(
        [llama('m', '8b', { replicas: 6, parallel: { tensor: 1 } })],
        [gpus('GH200', 96, 1), gpus('A100-80GB', 80, 2)],
        { objective: 'latency' },
      ),
    );
    const on = planOf(crowded, 'm').runners_up.find(({ node_kind }) => node_kind === 'gh200')!;
    expect(on.because).toBe('needs 6 devices; 4 are left');
  });
});

describe('limits', () => {
  it('gives the best plan so far with its gap when it is told to stop', () => {
    const models = Array.from({ length: 12 }, (_, at) =>
      llama(`m${at}`, at % 2 === 0 ? '8b' : '13b', {
        replicas: 'auto',
        workload: { ...heavy, rate_per_s: 3 + at },
      }),
    );
    const plan = place(ask(models, kinds(), { objective: 'latency' }), { shouldStop: () => true });
    expect(plan.unplaced).toEqual([]);
    expect(['feasible', 'first_fit']).toContain(plan.search.status);
    if (plan.search.status === 'first_fit') {
      expect(plan.search.because).toBe('no_time');
      // As many as keep up, not one each.
      expect(planOf(plan, 'm11').groups[0]!.predicted!.utilization).toBeLessThan(1);
    }
    if (plan.search.status === 'feasible') expect(plan.search.gap).toBeGreaterThanOrEqual(0);
  });

  it('plans ten thousand devices, a thousand replicas, and kinds of which nobody said how many there are', () => {
    const big = [
      gpus('GH200', 96, 1500),
      gpus('A100-80GB', 80, 1000),
      gpus('V100', 32, Number.MAX_SAFE_INTEGER),
    ];
    const plan = place(
      ask([llama('a', '8b', { replicas: 1000 }), llama('b', '70b', { replicas: 200 })], big, {
        objective: 'latency',
      }),
    );
    expect(plan.unplaced).toEqual([]);
    expect(plan.launches.flatMap(({ units }) => units)).toHaveLength(1200);
  });

  it('gives the same plan with what earlier questions learned', () => {
    const estimator = new LatencyEstimator();
    const models = [
      llama('a', '8b', { replicas: 'auto', workload: heavy }),
      llama('b', '70b', { workload: { ...heavy, rate_per_s: 2 }, slo: { tpot_ms: 40 } }),
    ];
    for (const change of [0, -1, 1]) {
      const [small, ...rest] = kinds();
      const now = [{ ...small!, nodes_total: small!.nodes_total + change }, ...rest];
      expect(place(ask(models, now), { estimator })).toEqual(place(ask(models, now)));
      const other = [{ ...models[0]!, workload: { ...models[0]!.workload!, rate_per_s: 80 } }, models[1]!];
      expect(place(ask(other, now), { estimator })).toEqual(place(ask(other, now)));
    }
  });

  it('answers where there is nothing at all', () => {
    expect(place(ask([llama('m', '8b')], []))).toMatchObject({
      launches: [],
      unplaced: [{ model: 'm', replicas: 1 }],
    });
  });
});
