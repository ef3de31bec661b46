/** Idle nodes of preemptible kinds, and until when they are idle as far as Slurm knows. */
import type { IdleHole } from '../../solver/scavenging/scavenge.ts';
import type { SiteConfig } from '../../spec/site.ts';
import type { NodeKind } from '../../spec/site-nodes.ts';
import type { LiveFacts } from '../plan/live-facts.ts';
import { freeNodes } from '../plan/site-offers.ts';

/** What Slurm says of the nodes that others are to get. */
export interface Promises {
  /** Expected starts of pending jobs, ours left out. */
  starts: readonly { start_time_ms: number; nodes: readonly string[] }[];
  reservations: readonly { start_time_ms: number; end_time_ms: number; nodes: readonly string[] }[];
}

export function scavengerKinds(site: SiteConfig): NodeKind[] {
  return site.kind === 'slurm' ? site.node_kinds.filter((kind) => kind.tier === 'scavenger') : [];
}

/** Holes of like nodes; nodes within a reservation are none. */
export function idleHoles(site: SiteConfig, live: LiveFacts, promises: Promises, now_ms: number): IdleHole[] {
  const until_ms = openUntil(promises, now_ms);
  const holes = new Map<string, IdleHole>();
  for (const kind of scavengerKinds(site))
    for (const { node, devices } of freeNodes(site, kind, live)) {
      const seconds = ((until_ms.get(node) ?? Number.POSITIVE_INFINITY) - now_ms) / 1000;
      if (seconds <= 0) continue;
      const key = JSON.stringify([kind.name, devices, String(seconds)]);
      const hole = holes.get(key) ?? { node_kind: kind.name, nodes: 0, devices, seconds };
      holes.set(key, { ...hole, nodes: hole.nodes + 1 });
    }
  return [...holes.values()];
}

/** Nodes that two kinds stand for are idle once. */
export function idleDevices(site: SiteConfig, live: LiveFacts): number {
  const byNode = new Map<string, number>();
  for (const kind of scavengerKinds(site))
    for (const { node, devices } of freeNodes(site, kind, live)) byNode.set(node, devices);
  return [...byNode.values()].reduce((sum, devices) => sum + devices, 0);
}

function openUntil({ starts, reservations }: Promises, now_ms: number): Map<string, number> {
  const until_ms = new Map<string, number>();
  const promised = (nodes: readonly string[], at_ms: number): void => {
    for (const node of nodes) until_ms.set(node, Math.min(at_ms, until_ms.get(node) ?? at_ms));
  };
  for (const { nodes, start_time_ms } of starts) promised(nodes, Math.max(now_ms, start_time_ms));
  for (const { nodes, start_time_ms, end_time_ms } of reservations)
    if (end_time_ms > now_ms) promised(nodes, Math.max(now_ms, start_time_ms));
  return until_ms;
}
