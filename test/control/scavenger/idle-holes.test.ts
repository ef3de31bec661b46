import { expect, test } from 'vitest';
import type { LiveNodes } from '../../../control/plan/live-facts.ts';
import { idleDevices, idleHoles } from '../../../control/scavenger/idle-holes.ts';
import { withoutJobs } from '../../../solver/scavenging/scavenge.ts';
import { shippedSite } from '../../slurm/script-cases.ts';

const site = shippedSite('test-cluster');
const group = (nodes: string[], facts: Partial<LiveNodes> = {}): LiveNodes => ({
  partition: 'scavenge',
  nodes,
  states: ['idle'],
  features: ['gh200', 'nvlink'],
  gres: [{ name: 'gpu', type: 'gh200', count: 4 }],
  gres_used: [{ name: 'gpu', type: 'gh200', count: 0 }],
  cpus: 8,
  cpu_counts: { idle: 8 * nodes.length },
  memory_mb: 65_536,
  ...facts,
});
const partitions = [{ name: 'scavenge', is_default: false, max_time_s: 14_400 }];
const live = (...nodes: LiveNodes[]) => ({ nodes, partitions });
const never = { starts: [], reservations: [] };

test('free devices of nodes that take jobs, those of preemptible kinds only', () => {
  const used = [{ name: 'gpu', type: 'gh200', count: 3 }];
  const facts = live(
    group(['gh1', 'gh2']),
    group(['gh3'], { states: ['mixed'], gres_used: used }),
    group(['gh4'], { states: ['idle', 'drain'] }),
    group(['gh5'], { partition: 'gh200' }),
  );
  expect(idleHoles(site, facts, never, 0)).toEqual([
    { node_kind: 'scavenge-gh200', nodes: 2, devices: 4, seconds: Number.POSITIVE_INFINITY },
    { node_kind: 'scavenge-gh200', nodes: 1, devices: 1, seconds: Number.POSITIVE_INFINITY },
  ]);
  expect(idleDevices(site, facts)).toBe(9);
});

test('open until somebody is expected or a reservation begins, closed within one', () => {
  const holes = idleHoles(
    site,
    live(group(['gh1', 'gh2', 'gh3'])),
    {
      starts: [{ start_time_ms: 600_000, nodes: ['gh1'] }],
      reservations: [
        { start_time_ms: 300_000, end_time_ms: 900_000, nodes: ['gh1'] },
        { start_time_ms: -5, end_time_ms: 900_000, nodes: ['gh2'] },
        { start_time_ms: -50, end_time_ms: -5, nodes: ['gh3'] },
      ],
    },
    0,
  );
  expect(holes.map(({ seconds }) => seconds)).toEqual([300, Number.POSITIVE_INFINITY]);
});

test('what others take of a hole is theirs', () => {
  const shape = { shape: 'a', node_kind: 'k', nodes: 2, devices: 3, load_s: 1, worth_per_s: 1 };
  const holes = [
    { node_kind: 'k', nodes: 2, devices: 4, seconds: 100 },
    { node_kind: 'k', nodes: 1, devices: 4, seconds: 200 },
  ];
  const left = withoutJobs(holes, [shape]);
  expect(left.map(({ seconds, devices }) => [seconds, devices])).toEqual([
    [200, 1],
    [100, 1],
    [100, 4],
  ]);
});
