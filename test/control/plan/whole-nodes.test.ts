/** Sites that give whole nodes: what a plan leaves unused is said before it is paid for. */
import { expect, it } from 'vitest';
import type { LiveNodes } from '../../../control/plan/live-facts.ts';
import { freeNodes, offersOf } from '../../../control/plan/site-offers.ts';
import { unusedDevices } from '../../../control/plan/whole-nodes.ts';
import type { PlannedLaunch } from '../../../spec/plan.ts';
import { type SiteConfig, siteSchema } from '../../../spec/site.ts';
import { plannedLaunch } from '../support.ts';

function site(slurm: Record<string, unknown> = {}, kind: Record<string, unknown> = {}): SiteConfig {
  const devices = [{ kind: 'gpu', model: 'A100', count: 4, memory_gb: 80 }];
  return siteSchema.parse({
    name: 's',
    kind: 'slurm',
    slurm,
    node_kinds: [{ name: 'a100', partition: 'gpu', devices, ...kind }],
  });
}

function launchOn(devices: number): PlannedLaunch {
  const planned = plannedLaunch('m-0');
  const devices_per_node = { kind: 'gpu' as const, model: 'A100', count: devices, memory_bytes: 80e9 };
  return { ...planned, node_kind: 'a100', devices_per_node };
}

const partition = { name: 'gpu', is_default: true, max_time_s: 3600 };
const warnings = (config: SiteConfig, devices: number, live = false): string[] =>
  unusedDevices(
    [launchOn(devices), launchOn(4)],
    offersOf(config, live ? { nodes: [], partitions: [{ ...partition, exclusive: true }] } : undefined, {}),
  );

it.each([
  ['the site config says so', site({ defaults: { exclusive: true } })],
  ['the node kind does', site({}, { slurm: { exclusive: true } })],
  ['GPUs are not asked for, since nodes come with them', site({ gpu_request: { form: 'none' } })],
])('where nodes are given whole: %s', (_, config) => {
  expect(warnings(config, 1)).toEqual([
    'a100: nodes are given whole, and 3 of their 8 A100 would be allocated and used by nothing; ask for more replicas of m, or for a node kind whose nodes are shared',
  ]);
  expect(warnings(config, 4)).toEqual([]);
});

it('the partition itself may do so, and a node kind may say that it is not so', () => {
  expect(warnings(site(), 1)).toEqual([]);
  expect(warnings(site(), 1, true)).toHaveLength(1);
  const shared = { slurm: { exclusive: false } };
  expect(warnings(site({ defaults: { exclusive: true } }, shared), 1)).toEqual([]);
});

it('a node on which somebody has a job is not free where nodes are given whole', () => {
  const node = (name: string, states: string[], used: number): LiveNodes => ({
    partition: 'gpu',
    nodes: [name],
    states,
    features: [],
    gres: [{ name: 'gpu', type: 'a100', count: 4 }],
    gres_used: [{ name: 'gpu', type: 'a100', count: used }],
    cpus: 64,
    cpu_counts: { idle: 48 },
    memory_mb: 500_000,
  });
  const mixed = node('n1', ['mixed'], 1);
  const spaceOf = (exclusive: boolean, ...nodes: LiveNodes[]) => {
    const live = { nodes, partitions: [{ ...partition, exclusive }] };
    const config = site();
    const [offer] = offersOf(config, live, {});
    const names = freeNodes(config, config.node_kinds[0]!, live);
    return { free: offer!.free, names: names.map((free) => free.node) };
  };
  expect(spaceOf(true, mixed)).toEqual({ free: [], names: [] });
  expect(spaceOf(true, mixed, node('n2', ['idle'], 0))).toEqual({
    free: [{ nodes: 1, devices: 4, cpus: 48 }],
    names: ['n2'],
  });
  expect(spaceOf(false, mixed)).toEqual({ free: [{ nodes: 1, devices: 3, cpus: 48 }], names: ['n1'] });
});
