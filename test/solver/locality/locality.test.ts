import { describe, expect, it } from 'vitest';
import {
  alwaysOnDevices,
  alwaysOnReplicas,
  floor_settings,
} from '../../../solver/locality/always-on-floor.ts';
import { affinity_weights, affinityScore, chooseServers } from '../../../solver/locality/host-affinity.ts';
import {
  predictLoad,
  type ResourceGraph,
  type ScalingMark,
} from '../../../solver/locality/resource-graph.ts';
import { reclaimDevices } from '../../../solver/pipeline-simulator/reclaim-devices.ts';

const gb = 1e9;
const graph: ResourceGraph = {
  storage_bytes_per_s: 8 * gb,
  rack_bytes_per_s: 10 * gb,
  servers: ['a', 'b', 'c', 'd'].map((id, index) => ({
    id,
    rack: index < 2 ? 'left' : 'right',
    link_bytes_per_s: 20 * gb,
  })),
};
const server = (id: string) => graph.servers.find((own) => own.id === id)!;
const mark = (id: string, source: ScalingMark['source'], end_ms = 1000): ScalingMark => ({
  server: id,
  source,
  end_ms,
});

describe('the resource graph', () => {
  it('shares every level among the loads that cross it, and names the slowest', () => {
    const load = (source: ScalingMark['source'], marks: ScalingMark[]) =>
      predictLoad(graph, marks, 0, { server: server('a'), source, bytes: 40 * gb });
    expect(load('host', [])).toEqual({ load_s: 2, bottleneck: 'server' });
    expect(load('peer', [])).toEqual({ load_s: 4, bottleneck: 'rack' });
    expect(load('storage', [])).toEqual({ load_s: 5, bottleneck: 'cluster' });
    expect(load('peer', [mark('b', 'peer')])).toEqual({ load_s: 8, bottleneck: 'rack' });
    expect(load('peer', [mark('c', 'peer')]).load_s).toBe(4);
    expect(load('storage', [mark('c', 'storage')])).toEqual({ load_s: 10, bottleneck: 'cluster' });
    expect(load('host', [mark('b', 'storage')]).load_s).toBe(2);
    expect(load('host', [mark('a', 'host'), mark('a', 'host')]).load_s).toBe(6);
    expect(load('host', [mark('a', 'host', 0)]).load_s).toBe(2);
  });
});

describe('affinity by Eq. 13', () => {
  it('prefers the server that had the model last, then the one with more free devices', () => {
    const score = (hosted_ms: number | undefined, devices_free: number): number =>
      affinityScore(
        hosted_ms === undefined ? { devices_free } : { hosted_ms, devices_free },
        3_600_000,
        affinity_weights,
      );
    expect(score(3_600_000, 1)).toBeCloseTo(1.05, 9);
    expect(score(1_800_000, 1)).toBeCloseTo(Math.exp(-1) + 0.05, 9);
    expect(score(3_000_000, 1)).toBeGreaterThan(score(1_000_000, 1));
    expect(score(undefined, 4)).toBeGreaterThan(score(undefined, 2));
  });

  it('spreads the stages of one event over paths, and knows how long they take together', () => {
    const candidates = graph.servers.map((own) => ({
      server: own,
      devices_free: 4,
      source: 'storage' as const,
    }));
    const found = chooseServers({
      graph,
      marks: [],
      now_ms: 0,
      candidates,
      stage_bytes: [8, 8, 8, 8].map((bytes) => bytes * gb),
    });
    expect(new Set(found.choices.map(({ server: id }) => id)).size).toBeGreaterThanOrEqual(3);
    expect(found.marks).toHaveLength(4);
    expect(found.load_s).toBeCloseTo(4, 9);
  });

  it('takes the warm server although it is busy, until that is slower than the cold one', () => {
    const candidates = [
      { server: server('a'), devices_free: 8, source: 'host' as const, hosted_ms: 0 },
      { server: server('c'), devices_free: 8, source: 'storage' as const },
    ];
    const first = (marks: ScalingMark[]): string =>
      chooseServers({ graph, marks, now_ms: 0, candidates, stage_bytes: [20 * gb] }).choices[0]!.server;
    expect(first([])).toBe('a');
    expect(first([mark('a', 'host')])).toBe('a');
    expect(first(Array.from({ length: 20 }, () => mark('a', 'host')))).toBe('c');
  });

  it('gives no more stages than there are devices', () => {
    const candidates = [{ server: server('a'), devices_free: 2, source: 'host' as const }];
    const question = { graph, marks: [], now_ms: 0, candidates, stage_bytes: [gb, gb, gb] };
    expect(chooseServers(question).choices).toHaveLength(2);
  });
});

describe('the always-on floor', () => {
  it('is a share of the peak, and at least the smallest pipeline', () => {
    expect(alwaysOnDevices(40, 4, floor_settings)).toBe(12);
    expect(alwaysOnDevices(41, 4, floor_settings)).toBe(13);
    expect(alwaysOnDevices(8, 4, floor_settings)).toBe(4);
  });

  it('is what model.yaml says, to nothing at all, and that share of the most replicas where it does not', () => {
    expect(alwaysOnReplicas({ max: 10 })).toBe(3);
    expect(alwaysOnReplicas({ max: 4 })).toBe(2);
    expect(alwaysOnReplicas({ max: 1 })).toBe(1);
    expect(alwaysOnReplicas({ min: 0, max: 10 })).toBe(0);
    expect(alwaysOnReplicas({ min: 7, max: 10 })).toBe(7);
  });

  it('gives devices back after five idle minutes, the longest idle first, and never the floor', () => {
    const held = [
      { id: 'busy' },
      { id: 'old', idle_since_ms: 0 },
      { id: 'older', idle_since_ms: -1 },
      { id: 'new', idle_since_ms: 200_000 },
    ];
    expect(reclaimDevices(300_000, held, 1, floor_settings)).toEqual({
      release: ['older', 'old'],
      next_ms: 500_000,
      because: '2 device(s) were idle for 300 s; 1 are always on',
    });
    expect(reclaimDevices(300_000, held, 3, floor_settings).release).toEqual(['older']);
    expect(reclaimDevices(299_000, held, 1, floor_settings)).toMatchObject({
      release: [],
      next_ms: 299_999,
    });
    expect(reclaimDevices(900_000, held, 4, floor_settings).release).toEqual([]);
  });
});
