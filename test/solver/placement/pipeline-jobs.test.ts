/** Stages of one replica over several jobs of one node each: what the plan says of them. */
import { describe, expect, it } from 'vitest';
import { checkPlacement } from '../../../solver/placement/check.ts';
import { place } from '../../../solver/placement/placement.ts';
import { stagesPerNode } from '../../../spec/launch.ts';
import { deploymentSchema } from '../../../spec/model-yaml.ts';
import { type NodeKindOffer, type Placement, unitsOfJob } from '../../../spec/plan.ts';
import { ask, cpus, gguf } from './support.ts';

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

    it('goes only to nodes of one device, with room for it', () => {
      const other = { ...idle, devices: { ...idle.devices, model: 'EPYC-9654' } };
      const narrow = { ...idle, devices: { ...idle.devices, count: 1 } };
      for (const kind of [other, narrow, { ...idle, cpus: 1 }, { ...idle, memory_bytes: 1 }])
        expect(place(asked([stable, kind])).rejected).toContainEqual(
          expect.objectContaining({ constraint: 'tier_asked', node_kind: stable.node_kind }),
        );
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
