/**
 * What an agent says it was given, held against the plan: every way in which the two may differ, and names that mean
 * the same.
 */
import { describe, expect, it } from 'vitest';
import type { LiveFacts } from '../../../control/plan/live-facts.ts';
import { kindsOfNodes } from '../../../control/plan/site-offers.ts';
import {
  type ActualUnit,
  differences,
  type PlannedUnit,
  plannedUnit,
} from '../../../control/reconcile/confirm.ts';
import type { GivenDevice } from '../../../spec/agent-state.ts';
import type { UnitSpec } from '../../../spec/launch.ts';
import type { ModelSpec } from '../../../spec/model-yaml.ts';
import { siteSchema } from '../../../spec/site.ts';
import { plannedLaunch } from '../support.ts';

const planned: PlannedUnit = {
  node_kind: 'a100',
  tier: 'stable',
  engine: 'vllm',
  device_kind: 'gpu',
  device_model: 'A100',
  device_count: 1,
  device_memory_bytes: 40e9,
  tensor: 1,
  pipeline: 1,
  threads: 8,
};
const given: GivenDevice = {
  index: 2,
  kind: 'gpu',
  model: 'A100-SXM4-40GB',
  memory_bytes: 42.9e9,
  isa: ['sm_80'],
  uuid: 'GPU-1',
};
const actual: ActualUnit = { node: 'n1', node_kinds: ['scavenge', 'a100'], engine: 'vllm', devices: [given] };

describe('a replica runs as planned', () => {
  it('with as many stages as it has now, where they may change', () => {
    const { devices_per_node } = plannedLaunch('cut-0');
    const [unit] = plannedLaunch('cut-0').units;
    const asked = (pipeline: ModelSpec['parallel']['pipeline']): PlannedUnit => {
      const parallel = { ...unit!.model.parallel, pipeline };
      const stages = [0, 1, 2, 3].map((device) => ({ begin: device, end: device + 1, device }));
      const cut = { ...unit!, device_count: 4, pipeline: 4, stages, model: { ...unit!.model, parallel } };
      return plannedUnit(plannedLaunch('cut-0'), cut as UnitSpec);
    };
    const { kind, model, memory_bytes } = devices_per_node;
    const devices = [0, 1].map((index) => ({ index, kind, model, memory_bytes, isa: [], cores: [] }));
    const half = { node: 'n1', engine: unit!.engine, devices } as ActualUnit;
    const changes = asked({ stages_min: 2, stages_max: 4 });
    const stays = asked(4);
    const counts = (planned: PlannedUnit): string[] =>
      differences(planned, half).filter((text) => text.includes('device(s)'));
    expect(counts(changes)).toEqual([]);
    expect(counts(stays)).toEqual(['planned on 4 device(s); it was given 2']);
  });

  it('where the driver has a longer name for the same device', () => {
    expect(differences(planned, actual)).toEqual([]);
    expect(differences({ ...planned, device_model: 'A100-40GB' }, actual)).toEqual([]);
  });

  it('where nobody could be asked of what kind its node is', () => {
    const { node_kinds: _, ...unknown } = actual;
    expect(differences(planned, unknown)).toEqual([]);
  });

  it.each([
    ['Xeon-8480+', 'Xeon Platinum 8480+'],
    ['EPYC 7763 64-Core', 'EPYC 7763'],
    ['CPU', 'Neoverse-V2'],
    ['Grace', 'CPU'],
    ['Xeon', 'Xeon Processor'],
  ])('on %s, which the kernel calls %s', (device_model, model) => {
    const cpu = { index: 0, kind: 'cpu' as const, model, memory_bytes: 1e9, isa: [], cores: [0, 1, 2, 3] };
    const asked = {
      ...planned,
      engine: 'native' as const,
      device_kind: 'cpu' as const,
      device_model,
      threads: 4,
    };
    expect(differences(asked, { ...actual, engine: 'native', devices: [cpu] })).toEqual([]);
  });

  it('on a MIG slice named with or without its GPU', () => {
    const slice = { ...given, kind: 'mig' as const, model: 'A100-SXM4-40GB MIG 1g.5gb', memory_bytes: 5e9 };
    const asked = { ...planned, device_kind: 'mig' as const, device_memory_bytes: 5e9 };
    expect(differences({ ...asked, device_model: 'A100-1g.5gb' }, { ...actual, devices: [slice] })).toEqual(
      [],
    );
    expect(differences({ ...asked, device_model: 'A100-2g.10gb' }, { ...actual, devices: [slice] })).toEqual([
      'mig 2: planned as A100-2g.10gb; it is A100-SXM4-40GB MIG 1g.5gb',
    ]);
  });
});

describe('a replica differs from its plan', () => {
  const cpu: GivenDevice = {
    index: 0,
    kind: 'cpu',
    model: 'Xeon',
    memory_bytes: 1e9,
    isa: [],
    cores: [0, 1],
  };
  it.each<[string, Partial<PlannedUnit>, Partial<ActualUnit>, string]>([
    ['node', {}, { node_kinds: ['v100'] }, 'planned on node kind a100; n1 is of kind v100'],
    [
      'unknown node',
      {},
      { node_kinds: [] },
      'planned on node kind a100; n1 is of none that the site config names',
    ],
    ['engine', {}, { engine: 'sglang' }, 'planned with engine vllm; sglang runs'],
    ['number of devices', { device_count: 2 }, {}, 'planned on 2 device(s); it was given 1'],
    ['no device', {}, { devices: [] }, 'planned on 1 device(s); it was given 0'],
    ['model', { device_model: 'H100' }, {}, 'gpu 2: planned as H100; it is A100-SXM4-40GB'],
    [
      'name that only begins alike',
      { device_model: 'A100' },
      { devices: [{ ...given, model: 'A1000' }] },
      'gpu 2: planned as A100; it is A1000',
    ],
    ['memory', { device_memory_bytes: 80e9 }, {}, 'gpu 2: planned with 80.0 GB; it has 42.9 GB'],
    ['kind', {}, { devices: [cpu] }, 'cpu 0: planned as gpu; it is of kind cpu'],
    [
      'stand-in nobody planned',
      {},
      { devices: [{ ...given, emulated: 'cpu' }] },
      'gpu 2: planned as a real A100; a CPU stands in for it',
    ],
    [
      'real one where a stand-in was planned',
      { emulated: 'cpu' },
      {},
      'gpu 2: planned as a A100 that a CPU stands in for; it is a real A100-SXM4-40GB',
    ],
    [
      'cores',
      { device_kind: 'cpu', device_model: 'Xeon' },
      { devices: [cpu] },
      'planned with 8 threads; its devices have 2 core(s)',
    ],
  ])('in its %s', (_, plan, found, sentence) => {
    expect(differences({ ...planned, ...plan }, { ...actual, ...found })).toEqual([sentence]);
  });
});

it('knows the kinds of a node by its features, GPUs and partition; some are of several, some of none', () => {
  const site = siteSchema.parse({
    name: 's',
    kind: 'slurm',
    node_kinds: [
      { name: 'a100', partition: 'gpu', gres_type: 'a100' },
      { name: 'spare', partition: 'scavenge', gres_type: 'a100' },
      { name: 'cpu', partition: 'cpu', features: ['amx'] },
    ],
  });
  const group = (partition: string, nodes: string[], type?: string, features: string[] = []) => ({
    partition,
    nodes,
    states: ['idle'],
    features,
    gres: type ? [{ name: 'gpu', type, count: 4 }] : [],
    gres_used: [],
    cpus: 8,
    cpu_counts: { idle: 8 },
    memory_mb: 1000,
  });
  const live: LiveFacts = {
    partitions: [],
    nodes: [
      group('gpu', ['g1', 'g2'], 'a100'),
      group('scavenge', ['g1', 'h1'], 'a100'),
      group('cpu', ['c1'], undefined, ['amx']),
      group('cpu', ['c2']),
    ],
  };
  expect(Object.fromEntries(kindsOfNodes(site, live))).toEqual({
    g1: ['a100', 'spare'],
    g2: ['a100'],
    h1: ['spare'],
    c1: ['cpu'],
    c2: [],
  });
});
