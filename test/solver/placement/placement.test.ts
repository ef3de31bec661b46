import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { place } from '../../../solver/placement/placement.ts';
import { modelSchema } from '../../../spec/model-yaml.ts';
import {
  defaultPlacementSettings,
  type NodeKindOffer,
  type PlacementModel,
  type PlacementQuestion,
} from '../../../spec/plan.ts';
import { llama } from './support.ts';

const gib = 1024 ** 3;

function model(asked: Record<string, unknown> = {}, facts: Partial<PlacementModel> = {}): PlacementModel {
  return {
    spec: modelSchema.parse({ name: 'm', source: '/m.gguf', ...asked }),
    model_path: '/m.gguf',
    format: 'gguf',
    architecture: 'llama',
    weight_bytes: 1 * gib,
    kv_bytes_per_token: 32 * 1024,
    trained_context_tokens: 4096,
    native: { supported: true },
    ...facts,
  };
}

function offer(facts: Partial<NodeKindOffer> = {}): NodeKindOffer {
  return {
    node_kind: 'cpu',
    tier: 'stable',
    partitions: ['cpu'],
    nodes_total: 4,
    nodes_idle: 4,
    cpus: 8,
    memory_bytes: 64 * gib,
    devices: { kind: 'cpu', model: 'Xeon', count: 1, memory_bytes: 32 * gib },
    engines: { native: { available: true }, command: { available: true } },
    ...facts,
  };
}

const gpus = offer({
  node_kind: 'a100',
  partitions: ['gpu'],
  devices: { kind: 'gpu', model: 'A100-40GB', count: 4, memory_bytes: 40 * gib },
  engines: { vllm: { available: true }, native: { available: false, because: 'no native engine for GPUs' } },
});
const emulated = (name: string): NodeKindOffer =>
  offer({
    node_kind: name,
    devices: { kind: 'gpu', model: name.toUpperCase(), count: 2, memory_bytes: 4 * gib, emulated: 'cpu' },
  });

function question(models: PlacementModel[], node_kinds: NodeKindOffer[]): PlacementQuestion {
  return { deployment: 'd', site: 's', models, node_kinds, settings: defaultPlacementSettings };
}

describe('placement', () => {
  it('spreads replicas of one model over nodes, one job a node, when a node has one device', () => {
    const plan = place(question([model({ replicas: 3 })], [offer()]));
    expect(plan.unplaced).toEqual([]);
    expect(plan.launches).toHaveLength(3);
    expect(plan.launches.map((launch) => launch.units.map((unit) => unit.unit))).toEqual([
      ['m-0'],
      ['m-1'],
      ['m-2'],
    ]);
  });

  it('packs replicas on one node where it has devices, in one job with neighbouring devices', () => {
    const hf = model({ replicas: 4 }, { format: 'huggingface', weight_bytes: 14 * gib });
    const plan = place(question([hf], [gpus]));
    expect(plan.launches).toHaveLength(1);
    const [launch] = plan.launches;
    expect(launch!.devices_per_node.count).toBe(4);
    expect(launch!.units.map((unit) => unit.first_device)).toEqual([0, 1, 2, 3]);
    expect(plan.models[0]!.engine).toBe('vllm');
  });

  it('gives jobs of each kind that was listed by name', () => {
    const spread = model({ replicas: 2, devices: { node_kinds: ['gh200', 'a100'] } });
    const plan = place(question([spread], [emulated('a100'), emulated('gh200')]));
    expect(plan.launches.map((launch) => launch.node_kind)).toEqual(['gh200', 'a100']);
    expect(plan.launches.map((launch) => launch.devices_per_node.emulated)).toEqual(['cpu', 'cpu']);
  });

  it('takes tensor-parallel devices of one node and refuses what no node has', () => {
    const hf = { format: 'huggingface' as const, weight_bytes: 120 * gib };
    const fits = place(question([model({ parallel: { tensor: 4 } }, hf)], [gpus]));
    expect(fits.launches[0]!.units[0]).toMatchObject({ device_count: 4, first_device: 0 });
    const refused = place(question([model({ parallel: { tensor: 8 } }, hf)], [gpus]));
    expect(refused.rejected[0]).toMatchObject({ constraint: 'devices_per_node', needed: 8, available: 4 });
    expect(refused.unplaced).toEqual([{ model: 'm', replicas: 1 }]);
  });

  describe('of replicas on several nodes', () => {
    const hf = { format: 'huggingface' as const, weight_bytes: 240 * gib };
    const split = model({ parallel: { tensor: 4, pipeline: 2 } }, hf);
    const fabric = { ...gpus, private_fabric: true as const };

    it('splits layers within a node and stages over nodes, a job a replica', () => {
      const plan = place(question([{ ...split, spec: { ...split.spec, replicas: 2 } }], [fabric]));
      expect(plan.launches.map(({ node_count }) => node_count)).toEqual([2, 2]);
      expect(plan.launches[0]!.devices_per_node.count).toBe(4);
      expect(plan.launches[0]!.units).toHaveLength(1);
      expect(plan.launches[0]!.units[0]).toMatchObject({
        nodes: 2,
        device_count: 4,
        tensor: 4,
        pipeline: 2,
        first_device: 0,
        threads: 8,
      });
      expect(plan.gpu_count).toBe(16);
      expect(plan.models[0]!.reasons.join()).toMatch(/takes 2 nodes/);
      expect(plan.models[0]!.reasons).toContainEqual(
        expect.stringMatching(/^replicas: 2 on .*, each with 4 devices on each of 2 nodes\)$/),
      );
    });

    it.each([
      [{ tensor: 4, pipeline: 2 }, 4, 'each with 4 devices on each of 2 nodes)'],
      [{ tensor: 1, pipeline: 2 }, 1, 'each with 1 device on each of 2 nodes)'],
      [{ tensor: 4, pipeline: 1 }, 4, ', 4 devices each)'],
      [{ tensor: 1, pipeline: 1 }, 1, ' (A100-40GB)'],
    ])('says what one takes: %j on nodes of %i', (parallel, count, words) => {
      const small = model({ parallel }, { ...hf, weight_bytes: 20 * gib });
      const nodes = { ...fabric, devices: { ...fabric.devices, count } };
      const { reasons } = place(question([small], [nodes])).models[0]!;
      expect(reasons.find((reason) => reason.startsWith('replicas: '))).toContain(words);
    });

    it('predicts the way between the stages by the network there is', () => {
      const asked = llama('big', '70b', { parallel: { tensor: 4, pipeline: 2 } });
      const tpot = (interconnect?: NodeKindOffer['interconnect']): number => {
        const plan = place(question([asked], [{ ...fabric, ...(interconnect ? { interconnect } : {}) }]));
        expect(plan.launches[0]!.node_count).toBe(2);
        return plan.models[0]!.groups[0]!.predicted!.tpot_ms;
      };
      // Half a round trip and 16 KiB a token, once a step: 43 µs on Ethernet, 2.7 µs on Slingshot.
      expect(tpot('ethernet') - tpot('slingshot')).toBeGreaterThan(0.04);
      expect(tpot('ethernet') - tpot('slingshot')).toBeLessThan(0.4);
      expect(tpot()).toBe(tpot('ethernet'));
    });

    it('takes as few nodes as hold the stages, and counts all of them as taken', () => {
      const eight = model({ parallel: { tensor: 2, pipeline: 8 } }, hf);
      const [launch] = place(question([eight], [fabric])).launches;
      expect(launch).toMatchObject({ node_count: 4, units: [{ nodes: 4, device_count: 4 }] });
      const other = { ...model({ name: 'other' }, { weight_bytes: 20 * gib }), format: hf.format };
      const both = place(question([eight, { ...other, spec: { ...other.spec, name: 'other' } }], [fabric]));
      expect(both.unplaced).toEqual([{ model: 'other', replicas: 1 }]);
    });

    it('chooses how far layers are split where that is left open', () => {
      const open = model({ parallel: { pipeline: 2 } }, hf);
      const [launch] = place(question([open], [fabric])).launches;
      expect(launch).toMatchObject({ node_count: 2, units: [{ tensor: 4, pipeline: 2 }] });
    });

    it('refuses them where the network between nodes is not private, or the engine stays on a node', () => {
      const open = place(question([split], [gpus])).rejected[0]!;
      expect(open).toMatchObject({ constraint: 'devices_per_node', needed: 8, available: 4 });
      expect(open.because).toMatch(/network\.private_fabric is not set/);
      const tgi = { ...fabric, engines: { tgi: { available: true as const } } };
      const asked = model({ engine: 'tgi', parallel: { tensor: 4, pipeline: 2 } }, hf);
      expect(place(question([asked], [tgi])).rejected[0]!.because).toMatch(/tgi runs a replica on one node/);
      const layer = model({ parallel: { tensor: 8, pipeline: 2 } }, hf);
      expect(place(question([layer], [fabric])).rejected[0]).toMatchObject({
        constraint: 'devices_per_node',
      });
    });

    it('finds too few nodes', () => {
      const plan = place(question([split], [{ ...fabric, nodes_total: 1, nodes_idle: 1 }]));
      expect(plan.unplaced).toEqual([{ model: 'm', replicas: 1 }]);
    });
  });

  it('says with numbers that a model is larger than any device', () => {
    const plan = place(question([model({}, { weight_bytes: 70 * gib })], [offer(), emulated('gh200')]));
    expect(plan.launches).toEqual([]);
    const memory = plan.rejected.filter((option) => option.constraint === 'device_memory');
    expect(memory.map((option) => option.available)).toEqual([32 * gib, 4 * gib]);
    expect(memory[0]!.needed).toBeGreaterThan(70 * gib);
    expect(memory[0]!.because).toMatch(/weights 70\.0 GiB/);
  });

  it('shortens the KV cache where memory ends, and says so', () => {
    const plan = place(question([model({ max_sequences: 64 })], [emulated('gh200')]));
    expect(plan.models[0]!.kv_tokens).toBeLessThan(64 * 4096);
    expect(plan.models[0]!.kv_tokens).toBeGreaterThanOrEqual(4096);
    expect(plan.warnings.join()).toMatch(/memory leaves room for \d+ KV tokens/);
  });

  it('chooses the engine by file and device, with the reason', () => {
    const gguf = place(question([model()], [offer()]));
    expect(gguf.models[0]).toMatchObject({ engine: 'native' });
    expect(gguf.models[0]!.reasons[0]).toMatch(/first that runs a GGUF file/);
    const unsupported = model(
      {},
      { native: { supported: false, because: 'architecture falcon is not computed' } },
    );
    const refused = place(question([unsupported], [offer()]));
    expect(refused.rejected[0]).toMatchObject({ constraint: 'architecture_unsupported' });
    expect(refused.rejected[0]!.because).toMatch(/falcon/);
  });

  it('names the constraint of each rejected kind', () => {
    const asked = model({ devices: { kind: 'gpu', models: ['gh200'] }, tier: 'stable' });
    const plan = place(
      question(
        [asked],
        [
          offer(),
          gpus,
          { ...emulated('gh200'), tier: 'scavenger' },
          { ...emulated('gh200'), nodes_total: 0 },
        ],
      ),
    );
    expect(plan.rejected.map((option) => option.constraint)).toEqual([
      'device_kind_asked',
      'device_model_asked',
      'tier_asked',
      'no_nodes',
    ]);
  });

  it('lets different models of which nothing is known share a device only when nothing else is left', () => {
    const two = [model({ name: 'a' }), model({ name: 'b' })];
    const apart = place(question(two, [offer({ nodes_total: 2 })]));
    expect(apart.launches).toHaveLength(2);
    const together = place(question(two, [offer({ nodes_total: 1 })]));
    expect(together.launches).toHaveLength(1);
    expect(together.launches[0]!.units.map((unit) => unit.first_device)).toEqual([0, 0]);
  });

  it('keeps unit names of models with a slash apart', () => {
    const two = [model({ name: 'org/m' }), model({ name: 'org--m' })];
    const plan = place(question(two, [offer()]));
    const names = plan.launches.flatMap((launch) => launch.units.map((unit) => unit.unit));
    expect(new Set(names).size).toBe(2);
    expect(names.every((name) => !name.includes('/'))).toBe(true);
  });

  it('never overfills a node, whatever is asked', () => {
    const models = fc.array(
      fc.record({
        replicas: fc.integer({ min: 0, max: 6 }),
        weights_gib: fc.integer({ min: 1, max: 12 }),
        threads: fc.option(fc.integer({ min: 1, max: 8 }), { nil: undefined }),
      }),
      { minLength: 1, maxLength: 4 },
    );
    const kind = fc.record({
      nodes: fc.integer({ min: 0, max: 4 }),
      devices: fc.integer({ min: 1, max: 4 }),
      cpus: fc.integer({ min: 1, max: 16 }),
      memory_gib: fc.integer({ min: 1, max: 64 }),
    });
    fc.assert(
      fc.property(models, fc.array(kind, { minLength: 1, maxLength: 3 }), (asked, kinds) => {
        const offers = kinds.map((each, index) =>
          offer({
            node_kind: `k${index}`,
            nodes_total: each.nodes,
            cpus: each.cpus,
            memory_bytes: each.memory_gib * gib,
            devices: {
              kind: 'cpu',
              model: 'X',
              count: each.devices,
              memory_bytes: (each.memory_gib * gib) / each.devices,
            },
          }),
        );
        const plan = place(
          question(
            asked.map((each, index) =>
              model(
                {
                  name: `m${index}`,
                  replicas: each.replicas,
                  ...(each.threads ? { cpu_threads: each.threads } : {}),
                },
                { weight_bytes: each.weights_gib * gib },
              ),
            ),
            offers,
          ),
        );
        for (const each of offers)
          expect(
            plan.launches.filter((launch) => launch.node_kind === each.node_kind).length,
          ).toBeLessThanOrEqual(each.nodes_total);
        for (const launch of plan.launches) {
          const of = offers.find((each) => each.node_kind === launch.node_kind)!;
          expect(launch.cpus_per_node).toBeLessThanOrEqual(of.cpus);
          expect(launch.memory_bytes_per_node).toBeLessThanOrEqual(of.memory_bytes);
          const needed = launch.units.reduce((sum, unit) => sum + unit.weight_bytes, 0);
          expect(needed).toBeLessThan(launch.memory_bytes_per_node);
          for (const unit of launch.units)
            expect(unit.first_device + unit.device_count).toBeLessThanOrEqual(of.devices.count);
        }
        const placed = plan.launches.flatMap((launch) => launch.units).length;
        const missing = plan.unplaced.reduce((sum, each) => sum + each.replicas, 0);
        expect(placed + missing).toBe(asked.reduce((sum, each) => sum + each.replicas, 0));
      }),
      { numRuns: 200 },
    );
  });
});
