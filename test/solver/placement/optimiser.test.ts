import { describe, expect, it } from 'vitest';
import { checkPlacement } from '../../../solver/placement/check.ts';
import { place } from '../../../solver/placement/placement.ts';
import { modelSchema } from '../../../spec/model-yaml.ts';
import {
  defaultPlacementSettings,
  type NodeKindOffer,
  type Placement,
  type PlacementModel,
  type PlacementQuestion,
} from '../../../spec/plan.ts';

const gib = 1024 ** 3;

function model(name: string, weights_gib: number, asked: Record<string, unknown> = {}): PlacementModel {
  return {
    spec: modelSchema.parse({ name, source: '/m', max_sequences: 1, ...asked }),
    model_path: '/m',
    format: 'huggingface',
    architecture: 'llama',
    weight_bytes: weights_gib * gib,
    kv_bytes_per_token: 32 * 1024,
    trained_context_tokens: 4096,
    native: { supported: false, because: 'not a GGUF file' },
  };
}

function gpus(
  node_kind: string,
  memory_gib: number,
  nodes: number,
  facts: Partial<NodeKindOffer> = {},
): NodeKindOffer {
  return {
    node_kind,
    tier: 'stable',
    partitions: ['gpu'],
    nodes_total: nodes,
    cpus: 64,
    memory_bytes: 512 * gib,
    devices: { kind: 'gpu', model: node_kind.toUpperCase(), count: 4, memory_bytes: memory_gib * gib },
    engines: { vllm: { available: true } },
    ...facts,
  };
}

function ask(
  models: PlacementModel[],
  node_kinds: NodeKindOffer[],
  more: Partial<PlacementQuestion> = {},
): PlacementQuestion {
  return { deployment: 'd', site: 's', models, node_kinds, settings: defaultPlacementSettings, ...more };
}

const where = (plan: Placement, name: string): Record<string, number> => {
  const counts: Record<string, number> = {};
  for (const launch of plan.launches)
    for (const unit of launch.units)
      if (unit.model.name === name) counts[launch.node_kind] = (counts[launch.node_kind] ?? 0) + 1;
  return counts;
};

describe('placement by the optimiser', () => {
  it('finds the division of nodes that taking the best option in turn misses', () => {
    // First fit gives the large model the stable small nodes; then nothing is left for the one bound to them.
    const free = model('free', 20, { replicas: 4 });
    const bound = model('bound', 10, { replicas: 4, devices: { models: ['a100'] } });
    const plan = place(ask([free, bound], [gpus('a100', 40, 1), gpus('gh200', 96, 1)]));
    expect(plan.unplaced).toEqual([]);
    expect(where(plan, 'bound')).toEqual({ a100: 4 });
    expect(where(plan, 'free')).toEqual({ gh200: 4 });
  });

  it('finds numbers of replicas above 64 that leave no device free', () => {
    const one = { devices: { kind: 'gpu', model: 'A100', count: 1, memory_bytes: 40 * gib } } as const;
    const many = model('many', 20, { replicas: 100 });
    const bound = model('bound', 10, { replicas: 1, devices: { node_kinds: ['a'] } });
    const plan = place(ask([many, bound], [gpus('a', 40, 34, one), gpus('b', 40, 67, one)]));
    expect(plan.unplaced).toEqual([]);
    expect(where(plan, 'many')).toEqual({ a: 33, b: 67 });
    expect(where(plan, 'bound')).toEqual({ a: 1 });
    expect(plan.search.status).not.toBe('first_fit');
  });

  describe('where a scavenger twin has more nodes than the stable kind', () => {
    const pool = { id: 'stable+scav', nodes: 20 };
    const kinds = [
      gpus('a100', 80, 1, { node_kind: 'stable', pool }),
      gpus('a100', 80, 20, { node_kind: 'scav', tier: 'scavenger', pool }),
    ];

    it('leaves the stable nodes to the model that needs them', () => {
      const free = model('free', 26, { replicas: 8 });
      const bound = model('bound', 16, { replicas: 4, tier: 'stable' });
      const plan = place(ask([free, bound], kinds));
      expect(plan.unplaced).toEqual([]);
      expect(where(plan, 'bound')).toEqual({ stable: 4 });
      expect(where(plan, 'free')).toEqual({ scav: 8 });
      expect(plan.search.status).toBe('optimal');
    });

    it('leaves them what must be stable of a model that may be elsewhere, too', () => {
      const free = model('free', 26, { replicas: 8 });
      const some = model('some', 16, { replicas: 6, min_stable_replicas: 3 });
      const plan = place(ask([free, some], kinds));
      expect(plan.unplaced).toEqual([]);
      expect(where(plan, 'some').stable).toBeGreaterThanOrEqual(3);
      expect(plan.search.status).not.toBe('first_fit');
    });

    it('gives them to one of several models that would rather be there', () => {
      const plan = place(ask([model('m', 26, { replicas: 4 }), model('n', 16, { replicas: 4 })], kinds));
      expect(plan.unplaced).toEqual([]);
      expect([where(plan, 'm'), where(plan, 'n')]).toEqual([{ stable: 4 }, { scav: 4 }]);
      expect(plan.search.status).toBe('feasible');
    });

    it('gives them to those that can be nowhere else before all of these', () => {
      const free = ['k', 'm'].map((name) => model(name, 26, { replicas: 2 }));
      const bound = model('bound', 16, { replicas: 2, tier: 'stable' });
      const plan = place(ask([...free, bound], kinds));
      expect(plan.unplaced).toEqual([]);
      expect(where(plan, 'bound')).toEqual({ stable: 2 });
      expect([where(plan, 'k'), where(plan, 'm')]).toEqual([{ stable: 2 }, { scav: 2 }]);
    });
  });

  it('leaves running replicas where they are, and moves them where that gains a full KV cache', () => {
    const asked = model('m', 10, { replicas: 4 });
    const kinds = [gpus('a100', 40, 1), gpus('gh200', 96, 1)];
    expect(where(place(ask([asked], kinds)), 'm')).toEqual({ a100: 4 });
    const running = [{ model: 'm', node_kind: 'gh200', replicas: 3, device_count: 1 }];
    expect(where(place(ask([asked], kinds, { running })), 'm')).toEqual({ a100: 1, gh200: 3 });
    const wide = model('m', 30, { replicas: 2, max_sequences: 256 });
    const onSmall = [{ model: 'm', node_kind: 'a100', replicas: 2, device_count: 1 }];
    expect(where(place(ask([wide], kinds, { running: onSmall })), 'm')).toEqual({ gh200: 2 });
  });

  it('minimises another objective where one is given', () => {
    const asked = model('m', 10, { replicas: 3 });
    const kinds = [gpus('a100', 40, 1), gpus('gh200', 96, 1)];
    const seconds = { a100: 5, gh200: 2 } as Record<string, number>;
    const plan = place(ask([asked], kinds), {
      costOf: ({ offer }, replicas) => replicas * seconds[offer.node_kind]!,
    });
    expect(where(plan, 'm')).toEqual({ gh200: 3 });
  });

  it('uses idle nodes before it waits for busy ones', () => {
    const plan = place(
      ask(
        [model('m', 10, { replicas: 6 })],
        [gpus('a100', 40, 4, { nodes_idle: 1 }), gpus('gh200', 96, 4, { nodes_idle: 2 })],
      ),
    );
    expect(where(plan, 'm')).toEqual({ a100: 4, gh200: 2 });
  });

  it('names the smallest set of models that clashes, with numbers', () => {
    const plan = place(
      ask(
        [
          model('elsewhere', 10, { replicas: 4, devices: { models: ['gh200'] } }),
          model('a', 10, { replicas: 3, devices: { models: ['a100'] } }),
          model('b', 60, { replicas: 1, parallel: { tensor: 2 }, devices: { models: ['a100'] } }),
        ],
        [gpus('a100', 40, 1), gpus('gh200', 96, 1)],
      ),
    );
    expect(plan.unplaced.reduce((sum, each) => sum + each.replicas, 0)).toBe(1);
    expect(plan.clash).toMatchObject({ models: ['b', 'a'], node_kinds: ['a100'], needed: 5, available: 4 });
    expect(plan.clash!.because).toMatch(
      /b \(1 × 2\) and a \(3 × 1\) need at least 5 devices .* have 4 \(a100: 1 × 4\)/,
    );
  });

  it('answers for hundreds of replicas and thousands of nodes', () => {
    const models = Array.from({ length: 12 }, (_, at) =>
      model(`m${at}`, 5 + 5 * at, { replicas: 20 + 40 * (at % 4) }),
    );
    const kinds = [
      gpus('a100', 40, 400),
      gpus('gh200', 96, 1500),
      gpus('l40s', 48, 600, { tier: 'scavenger' }),
    ];
    const plan = place(ask(models, kinds));
    expect(plan.unplaced).toEqual([]);
    expect(plan).toEqual(place(ask(models, kinds)));
  });
});

describe('the checker of placements', () => {
  const question = ask([model('m', 10, { replicas: 2 })], [gpus('a100', 40, 1)]);
  const sound = place(question);
  const broken: [string, RegExp, (plan: Placement) => void][] = [
    [
      'more nodes than there are',
      /2 nodes of 1/,
      (plan) => plan.launches.push({ ...plan.launches[0]!, units: [] }),
    ],
    [
      'a device twice',
      /shared by a wrapped engine/,
      (plan) => (plan.launches[0]!.units[1]!.first_device = 0),
    ],
    [
      'a device that is not there',
      /takes device 4 of 4/,
      (plan) => (plan.launches[0]!.units[1]!.first_device = 4),
    ],
    ['more CPUs', /65 CPUs of 64/, (plan) => (plan.launches[0]!.cpus_per_node = 65)],
    ['more memory', /bytes of memory of/, (plan) => (plan.launches[0]!.memory_bytes_per_node = 2 ** 60)],
    [
      'KV beyond the device',
      /device 0: \d+ bytes of/,
      (plan) => (plan.launches[0]!.units[0]!.kv_tokens = 10 ** 7),
    ],
    ['a replica lost', /1 placed and 0 unplaced of 2/, (plan) => plan.launches[0]!.units.pop()],
    [
      'an engine that is not there',
      /sglang does not run here/,
      (plan) => (plan.launches[0]!.units[0]!.engine = 'sglang'),
    ],
    ['another tier', /no such node kind/, (plan) => (plan.launches[0]!.tier = 'scavenger')],
    [
      'one name twice',
      /two units of one name/,
      (plan) => (plan.launches[0]!.units[1]!.unit = plan.launches[0]!.units[0]!.unit),
    ],
  ];
  it('finds nothing wrong with a sound one', () => {
    expect(checkPlacement(question, sound)).toEqual([]);
  });
  it.each(broken)('finds %s', (_, message, breakIt) => {
    const plan = structuredClone(sound);
    breakIt(plan);
    expect(checkPlacement(question, plan).join('; ')).toMatch(message);
  });
});
