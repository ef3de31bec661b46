/** Stages of one replica over several jobs of one node each: what the plan says of them. */
import { describe, expect, it } from 'vitest';
import { checkPlacement } from '../../../solver/placement/check.ts';
import { place } from '../../../solver/placement/placement.ts';
import { stagesPerNode } from '../../../spec/launch.ts';
import { deploymentSchema } from '../../../spec/model-yaml.ts';
import { type NodeKindOffer, type Placement, type PlacementModel, unitsOfJob } from '../../../spec/plan.ts';
import { ask, cpus, gguf, gpus } from './support.ts';

const nodes = (count: number) => {
  const offer = cpus('Xeon-8480+', count, ['avx512_bf16']);
  return { ...offer, devices: { ...offer.devices, count: 2 } };
};
const planned = (parallel: object, count = 4, more: object = {}): Placement =>
  place(ask([gguf('cut', '8b', { parallel, ...more })], [nodes(count)]));

describe('a replica over several jobs', () => {
  it('is a job of one node for each of its parts, and a replica in the first one alone', () => {
    const plan = planned({ pipeline: 4, jobs: 2 });
    expect(plan.launches.map(({ node_count }) => node_count)).toEqual([1, 1]);
    expect(plan.launches.map(({ units }) => units.map(({ unit }) => unit))).toEqual([['cut-0'], []]);
    expect(plan.launches.map(({ part }) => [part?.group, part?.node_index, part?.jobs])).toEqual([
      ['cut-0', 0, 2],
      ['cut-0', 1, 2],
    ]);
    const [first, second] = plan.launches.map(unitsOfJob);
    expect(second).toEqual(first);
    expect(first).toMatchObject([{ nodes: 2, device_count: 2, pipeline: 4, node_index: 0 }]);
    expect(first![0]!.stages).toHaveLength(4);
    expect(plan.models[0]).toMatchObject({ replicas: 1 });
    expect(plan.models[0]!.reasons.join()).toMatch(/takes 2 jobs of one node each/);
  });

  it('begins with few stages in jobs that have devices for many, one in each', () => {
    const plan = planned({ pipeline: { stages_min: 2, stages_max: 4 }, jobs: 2 });
    expect(plan.launches.map(({ part }) => part?.jobs)).toEqual([2, 2]);
    const [unit] = unitsOfJob(plan.launches[1]!);
    expect(unit).toMatchObject({ nodes: 2, device_count: 2, pipeline: 2 });
    expect(unit!.stages).toHaveLength(2);
    expect(stagesPerNode(unit!)).toBe(1);
  });

  it('asks each job for its own devices alone', () => {
    const [narrow, wide] = [{ pipeline: 2, jobs: 2 }, { pipeline: 2 }].map((each) => planned(each).launches);
    expect(narrow).toHaveLength(2);
    expect(wide).toHaveLength(1);
    for (const job of narrow!) expect(job.cpus_per_node).toBeLessThan(wide![0]!.cpus_per_node);
  });

  it('is one of several replicas, each with a group of its own', () => {
    const plan = planned({ pipeline: 2, jobs: 2 }, 4, { replicas: 2 });
    expect(plan.launches.map(({ part }) => part?.group)).toEqual(['cut-0', 'cut-0', 'cut-1', 'cut-1']);
    expect(plan.unplaced).toEqual([]);
  });

  it('has no place where nodes are too few, or have too few devices', () => {
    expect(planned({ pipeline: 2, jobs: 2 }, 1).unplaced).toEqual([{ model: 'cut', replicas: 1 }]);
    expect(planned({ pipeline: 8, jobs: 2 }).rejected).toMatchObject([
      { constraint: 'devices_per_node', needed: 4, available: 2 },
    ]);
  });

  describe('whose later stages are lent', () => {
    const lent = { pipeline: 4, jobs: 2, lenders: 'scavenger' } as const;
    const stable = nodes(4);
    const idle: NodeKindOffer = {
      ...nodes(3),
      node_kind: 'idle',
      tier: 'scavenger',
      partitions: ['idle'],
    };
    const asked = (kinds: Parameters<typeof ask>[1], more: object = {}) =>
      ask([gguf('cut', '8b', { parallel: lent, tier: 'stable', ...more })], kinds);

    it('has its first job on stable nodes, and the others on those of tier scavenger, for as long as these may last', () => {
      const question = { ...asked([stable, { ...idle, time_limit_max_s: 3600 }]), time_limit_s: 7200 };
      const plan = place(question);
      const where = plan.launches.map(({ node_kind, tier, partitions, time_limit_s, units }) => {
        return { node_kind, tier, partitions, time_limit_s, units: units.length };
      });
      const own = { partitions: stable.partitions, time_limit_s: 7200, units: 1 };
      expect(where).toEqual([
        { node_kind: stable.node_kind, tier: 'stable', ...own },
        { node_kind: 'idle', tier: 'scavenger', partitions: ['idle'], time_limit_s: 3600, units: 0 },
      ]);
      expect(plan.models[0]!.reasons.join()).toContain('lent by idle');
      const elsewhere = plan.launches.map((launch) => ({ ...launch, ...where[0], units: launch.units }));
      expect(checkPlacement(question, { ...plan, launches: elsewhere }).join()).toContain('tier scavenger');
    });

    it('goes only to nodes with room for it, that the model asks for', () => {
      const narrow = { ...idle, devices: { ...idle.devices, count: 1 } };
      const gpu = { ...gpus('A100', 40, 2, { engines: idle.engines }), tier: 'scavenger' as const };
      const rejections = [
        [narrow, 'tier_asked'],
        [{ ...idle, cpus: 1 }, 'cpus_per_node'],
        [{ ...idle, memory_bytes: 1 }, 'host_memory'],
        [gpu, 'tier_asked'],
      ] as const;
      for (const [kind, constraint] of rejections)
        expect(place(asked([stable, kind], { devices: { kind: 'cpu' } })).rejected).toContainEqual(
          expect.objectContaining({ constraint, node_kind: stable.node_kind }),
        );
    });

    it('takes nodes of another kind that lends for a replica that finds none of the first', () => {
      const more = { ...nodes(1), tier: 'scavenger' as const, partitions: ['idle'] };
      const kinds = [stable, { ...more, node_kind: 'spare' }, { ...more, node_kind: 'idle', nodes_total: 2 }];
      const lending = ({ launches }: Placement) =>
        launches.flatMap(({ node_kind, tier }) => (tier === 'scavenger' ? [node_kind] : []));
      const three = place(asked(kinds, { replicas: 3 }));
      expect(three.unplaced).toEqual([]);
      expect(lending(three)).toEqual(['idle', 'idle', 'spare']);
      expect(three.models[0]).toMatchObject({ replicas: 3 });
      const four = place(asked(kinds, { replicas: 4 }));
      expect(lending(four)).toEqual(['idle', 'idle', 'spare']);
      expect(four.unplaced).toEqual([{ model: 'cut', replicas: 1 }]);
      expect(four.rejected.map(({ because }) => because).join()).toContain(
        'those of idle, spare that lend it stages, are taken',
      );
    });

    describe('by nodes with other devices', () => {
      const native = { native: { available: true } } as const;
      const first = gpus('A100-80GB', 80, 1, { count: 1, engines: native });
      const small = gpus('V100-16GB', 16, 3, { count: 1, engines: native, tier: 'scavenger', cpus: 20 });
      const wide = { ...small, node_kind: 'many', nodes_total: 9, memory_bytes: 2 ** 37 };
      const two = { parallel: { pipeline: 2, jobs: 2, lenders: 'scavenger' } };
      const [mixed] = [ask([gguf('cut', '70b', { ...two, context_tokens: 4096 })], [first, small])];

      it('is cut for what each of them has, and each job asks for its own', () => {
        const plan = place(mixed!);
        expect(checkPlacement(mixed!, plan)).toEqual([]);
        const [one, other] = plan.launches.map((launch) => {
          const [unit] = unitsOfJob(launch);
          return { launch, unit: unit! };
        });
        expect(one!.unit.stages).toEqual(other!.unit.stages);
        // 40 GB of weights are more than the second device has, and half of them, too.
        const layers = one!.unit.stages!.map(({ begin, end }) => Math.floor((end - begin) / 2));
        expect(layers[0]).toBeGreaterThan(50);
        expect(layers[1]).toBeGreaterThan(5);
        const memory = [one, other].map((each) => each!.unit.memory!.device_bytes);
        expect(memory[0]).toBeGreaterThan(30e9);
        expect(memory[1]).toBeLessThan(16 * 2 ** 30);
        expect(one!.unit.kv_tokens).toBe(other!.unit.kv_tokens);
        expect(other!.launch).toMatchObject({
          node_kind: 'v100-16gb',
          cpus_per_node: 20,
          devices_per_node: { kind: 'gpu', model: 'V100-16GB', count: 1 },
        });
        expect(one!.unit.node_device_kinds).toBeUndefined();
        expect(plan.models[0]!.reasons.join()).toContain('lent by v100-16gb on V100-16GB');
      });

      it('prefers devices like its own, and of others those that make it fastest', () => {
        const lender = (kinds: NodeKindOffer[]): string => {
          const model = gguf('cut', '8b', { ...two, tier: 'stable' });
          return place(ask([model], kinds)).launches[1]!.node_kind;
        };
        const alike = { ...first, node_kind: 'alike', tier: 'scavenger' as const };
        const fast = gpus('H100', 80, 1, { count: 1, engines: native, tier: 'scavenger' });
        expect(lender([first, wide, fast, alike])).toBe('alike');
        expect(lender([first, wide, fast])).toBe('h100');
      });

      it('may be on CPUs, of which every job is told', () => {
        const processors = cpus('Xeon-8480+', 2, ['avx512_bf16'], { tier: 'scavenger' });
        const model = gguf('cut', '8b', { ...two, tier: 'stable' });
        const question = ask([model], [first, processors]);
        const plan = place(question);
        expect(checkPlacement(question, plan)).toEqual([]);
        const units = plan.launches.map((launch) => unitsOfJob(launch)[0]!);
        expect(units.map(({ device_kind }) => device_kind)).toEqual(['gpu', 'cpu']);
        for (const unit of units) expect(unit.node_device_kinds).toEqual(['gpu', 'cpu']);
        expect(plan.launches.map(({ devices_per_node }) => devices_per_node.count)).toEqual([1, 0]);
        // A processor is slower, and has fewer of the layers.
        const [{ stages }] = units as [(typeof units)[number]];
        expect(stages![0]!.end - stages![0]!.begin).toBeGreaterThan(stages![1]!.end - stages![1]!.begin);
        const { tpot_ms } = plan.models[0]!.groups[0]!.predicted!;
        const alone = place(ask([gguf('cut', '8b')], [first])).models[0]!.groups[0]!.predicted!;
        expect(tpot_ms).toBeGreaterThan(alone.tpot_ms);
      });

      it('warns where they make it much slower, and says whose network it is predicted with', () => {
        const processors = cpus('Xeon-8480+', 2, ['avx512_bf16'], { tier: 'scavenger', cpus: 4 });
        const linked = { ...first, interconnect: 'infiniband' as const };
        const model = gguf('cut', '8b', { ...two, tier: 'stable' });
        const plan = place(ask([model], [linked, { ...processors, interconnect: 'ethernet' }]));
        expect(plan.warnings.join()).toMatch(
          /its stages on Xeon-8480\+ \(xeon-8480\+\) make each batch take [\d.]+ times as long as stages on A100-80GB alone/,
        );
        expect(plan.models[0]!.reasons.join()).toMatch(/predicted with ethernet/);
        const fast = place(ask([model], [linked, { ...first, node_kind: 'alike', tier: 'scavenger' }]));
        expect(fast.warnings.join()).not.toContain('times as long');
      });

      it('is cut for processors with fewer cores as for another device, though they have one name', () => {
        const cores = (count: number, facts: Partial<NodeKindOffer>): NodeKindOffer => {
          const kind = cpus('Xeon-8480+', 1, ['avx512_bf16'], { cpus: count, ...facts });
          return { ...kind, devices: { ...kind.devices, cores: count } };
        };
        const layers = (lender: NodeKindOffer): number[] => {
          const model = gguf('cut', '8b', { ...two, tier: 'stable' });
          const question = ask([model], [cores(48, { node_kind: 'own' }), lender]);
          const plan = place(question);
          expect(checkPlacement(question, plan)).toEqual([]);
          const [unit] = plan.launches[0]!.units;
          return unit!.stages!.map(({ begin, end }) => Math.floor((end - begin) / 2));
        };
        const scavenger = { node_kind: 'other', tier: 'scavenger' as const };
        const even = layers(cores(48, scavenger));
        expect(Math.abs(even[0]! - even[1]!)).toBeLessThan(4);
        const few = layers(cores(6, scavenger));
        expect(few[0]! - few[1]!).toBeGreaterThan(8);
      });

      it('is not cut by what its stages took on devices of another kind', () => {
        const model = gguf('cut', '8b', { ...two, tier: 'stable' });
        const cutWith = (seen: PlacementModel['seen']) =>
          place(ask([{ ...model, seen }], [first, small])).launches[0]!.units[0]!.stages!;
        const fresh = cutWith(undefined);
        const stages = fresh.map((cut, at) => ({ ...cut, compute_s: at === 0 ? 0.01 : 0.04 }));
        const of = { node_kind: first.node_kind, engine: 'native' as const, tensor: 1, pipeline: 2, stages };
        // As two nodes of its own kind took it, and as another lender.
        expect(cutWith([of])).toEqual(fresh);
        expect(cutWith([{ ...of, lender: 'other' }])).toEqual(fresh);
        expect(cutWith([{ ...of, lender: small.node_kind }])[0]!.end).toBeGreaterThan(fresh[0]!.end);
      });

      it('leaves the smaller device room for the KV that is wanted, where a cut does', () => {
        const asked = { ...two, tier: 'stable', context_tokens: 8192, max_sequences: 16 };
        const [unit] = place(ask([gguf('cut', '70b', asked)], [first, small])).launches[0]!.units;
        expect(unit!.kv_tokens).toBe(16 * 8192);
      });

      it('is lent nothing by nodes that its first job takes', () => {
        const pool = { id: 'all', nodes: 1 };
        const twin = { ...first, node_kind: 'twin', tier: 'scavenger' as const, pool };
        const model = gguf('cut', '8b', { ...two, tier: 'stable' });
        const plan = place(ask([model], [{ ...first, pool }, twin, small]));
        expect(plan.unplaced).toEqual([]);
        expect(plan.launches[1]!.node_kind).toBe(small.node_kind);
      });

      it('keeps its stages: none of them moves to a device of the other kind', () => {
        const range = { pipeline: { stages_min: 2, stages_max: 4 }, jobs: 2, lenders: 'scavenger' };
        const of = (kind: NodeKindOffer) => ({ ...kind, devices: { ...kind.devices, count: 2 } });
        const model = gguf('cut', '8b', { parallel: range, tier: 'stable' });
        expect(place(ask([model], [of(first), of(small)])).rejected).toContainEqual(
          expect.objectContaining({ constraint: 'parallel_unsupported', node_kind: 'a100-80gb' }),
        );
      });

      it('is found unsound where a job has more than its devices hold, or others than they are', () => {
        const plan = place(mixed!);
        const [one, other] = plan.launches as [(typeof plan.launches)[0], (typeof plan.launches)[0]];
        const faults = (change: object): string => {
          const lends_to = other.part!.lends_to.map((unit) => ({ ...unit, ...change }));
          const launch = { ...other, part: { ...other.part!, lends_to } };
          return checkPlacement(mixed!, { ...plan, launches: [one, launch] }).join();
        };
        expect(faults({ kv_tokens: 1e6 })).toContain('device 0');
        expect(faults({ device_kind: 'cpu' })).toContain('devices of kind cpu');
      });
    });

    it('takes no more nodes of either kind than there are, nor of what they share', () => {
      const twice = { replicas: 2 };
      expect(place(asked([nodes(2), idle], twice)).unplaced).toEqual([]);
      const one = place(asked([nodes(1), idle]));
      expect([one.unplaced, one.search.status]).toEqual([[], 'optimal']);
      expect(place(asked([nodes(2), { ...idle, nodes_total: 1 }], twice)).unplaced).toEqual([
        { model: 'cut', replicas: 1 },
      ]);
      const pool = { id: 'all', nodes: 3 };
      expect(
        place(
          asked([
            { ...nodes(1), pool },
            { ...idle, pool },
          ]),
        ).unplaced,
      ).toEqual([]);
      expect(
        place(
          asked(
            [
              { ...stable, pool },
              { ...idle, pool },
            ],
            twice,
          ),
        ).unplaced,
      ).toEqual([{ model: 'cut', replicas: 1 }]);
    });

    it('is said with jobs alone', () => {
      const models = [{ name: 'cut', source: 'x', parallel: { lenders: 'scavenger' } }];
      const { error } = deploymentSchema.safeParse({ name: 'cut', models });
      const path = ['models', 0, 'parallel', 'lenders'];
      expect(error?.issues).toMatchObject([{ path, message: expect.stringContaining('say jobs') }]);
    });
  });

  it('is found unsound where a job is left out of its nodes', () => {
    const parallel = { pipeline: 4, jobs: 2 };
    const question = ask([gguf('cut', '8b', { parallel })], [nodes(4)]);
    const plan = place(question);
    expect(checkPlacement(question, plan)).toEqual([]);
    const [first, second] = plan.launches;
    const alone = { ...second!, part: { ...second!.part!, jobs: 1 } };
    expect(checkPlacement(question, { ...plan, launches: [first!, alone] }).join()).toMatch(/2 node\(s\)/);
  });
});
