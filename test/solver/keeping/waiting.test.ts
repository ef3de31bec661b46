/** What waits in a queue, and where else there is room. */
import { describe, expect, it } from 'vitest';
import { kindsWithRoom, overdue, startAtOnce } from '../../../solver/keeping/waiting.ts';
import type { NodeKindOffer, PlannedLaunch } from '../../../spec/plan.ts';

const patience_ms = 120_000;
const waits = (launch_id: string, submitted_at_ms: number, estimated_start_ms?: number) => ({
  launch_id,
  node_kind: 'gh200',
  submitted_at_ms,
  ...(estimated_start_ms === undefined ? {} : { estimated_start_ms }),
});
const offer = (node_kind: string, facts: Partial<NodeKindOffer> = {}): NodeKindOffer => ({
  node_kind,
  tier: 'stable',
  partitions: [node_kind],
  nodes_total: 2,
  cpus: 8,
  memory_bytes: 64e9,
  devices: { kind: 'gpu', model: node_kind.toUpperCase(), count: 4, memory_bytes: 4e9 },
  engines: { native: { available: true } },
  free: [{ nodes: 1, devices: 2, cpus: 4 }],
  ...facts,
});
const launch = (node_kind: string, count: number, node_count = 1): PlannedLaunch => ({
  node_kind,
  tier: 'stable',
  partitions: [node_kind],
  node_count,
  devices_per_node: { kind: 'gpu', model: node_kind.toUpperCase(), count, memory_bytes: 4e9 },
  cpus_per_node: count,
  memory_bytes_per_node: 1e9,
  units: [],
});

describe('launches that wait', () => {
  it('are overdue after so long, unless they are about to start; the longest first', () => {
    const all = [waits('b', 10_000), waits('a', 0), waits('soon', 0, 200_000), waits('late', 5_000, 900_000)];
    expect(overdue(all, patience_ms - 1, patience_ms)).toEqual([]);
    const due = overdue(all, 130_000, patience_ms).map(({ launch_id }) => launch_id);
    expect(due).toEqual(['a', 'late', 'b']);
  });

  it('may go to kinds with something free, which are not their own nodes under another name', () => {
    const pool = { id: 'gh200+twin', nodes: 2 };
    const offers = [
      offer('gh200', { pool }),
      offer('twin', { pool, tier: 'scavenger' }),
      offer('a100'),
      offer('full', { free: [{ nodes: 2, devices: 0, cpus: 8 }] }),
      offer('unasked', { free: undefined } as unknown as Partial<NodeKindOffer>),
    ];
    expect(kindsWithRoom(offers, 'gh200')).toEqual(['a100']);
  });

  it('move only where all of them start at once', () => {
    const offers = [offer('a100', { free: [{ nodes: 2, devices: 2, cpus: 4 }] })];
    expect(startAtOnce([launch('a100', 2), launch('a100', 2)], offers)).toBe(true);
    expect(startAtOnce([launch('a100', 2), launch('a100', 1), launch('a100', 1)], offers)).toBe(false);
    expect(startAtOnce([launch('a100', 3)], offers)).toBe(false);
    expect(startAtOnce([launch('a100', 2, 2)], offers)).toBe(true);
    expect(startAtOnce([launch('elsewhere', 1)], offers)).toBe(false);
  });
});
