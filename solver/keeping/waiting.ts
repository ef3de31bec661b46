/**
 * Launches that wait in the queue while other nodes that suit them are free: deployments that were planned at the same
 * moment all saw the same free nodes, and what is free changes while one waits. Pure.
 */
import type { NodeKindOffer, NodeSpace, PlannedLaunch } from '../../spec/plan.ts';

export interface WaitingLaunch {
  launch_id: string;
  node_kind: string;
  /** Unix ms. */
  submitted_at_ms: number;
  /** The scheduler's guess. */
  estimated_start_ms?: number;
}

/**
 * Those that have waited for longer than `patience_ms` and are not about to start within the same time again; the
 * longest waits first. Higher: fewer changes of mind; lower: less time in a queue.
 */
export function overdue(
  launches: readonly WaitingLaunch[],
  now_ms: number,
  patience_ms: number,
): WaitingLaunch[] {
  return launches
    .filter(({ submitted_at_ms, estimated_start_ms }) => {
      const soon = estimated_start_ms !== undefined && estimated_start_ms < now_ms + patience_ms;
      return now_ms - submitted_at_ms >= patience_ms && !soon;
    })
    .sort((a, b) => a.submitted_at_ms - b.submitted_at_ms);
}

/** Node kinds on which something is free now, but not nodes of `except` under this or another name. */
export function kindsWithRoom(offers: readonly NodeKindOffer[], except: string): string[] {
  const pools = offers.flatMap(({ node_kind, pool }) => (node_kind === except && pool ? [pool.id] : []));
  const others = offers.filter(
    (offer) => offer.node_kind !== except && !pools.includes(offer.pool?.id ?? '') && hasRoom(offer),
  );
  return [...new Set(others.map(({ node_kind }) => node_kind))];
}

function hasRoom(offer: NodeKindOffer): boolean {
  return (offer.free ?? []).some(({ nodes, devices }) => nodes > 0 && devices > 0);
}

/** Whether all of these would find their devices free now. */
export function startAtOnce(launches: readonly PlannedLaunch[], offers: readonly NodeKindOffer[]): boolean {
  const free = new Map<NodeKindOffer, NodeSpace[]>();
  return launches.every((launch) => {
    const offer = offers.find(
      ({ node_kind, devices }) =>
        node_kind === launch.node_kind && devices.model === launch.devices_per_node.model,
    );
    if (offer === undefined) return false;
    if (!free.has(offer))
      free.set(
        offer,
        (offer.free ?? []).map((group) => ({ ...group })),
      );
    const group = free
      .get(offer)!
      .find(
        ({ nodes, devices, cpus }) =>
          nodes >= launch.node_count &&
          devices >= launch.devices_per_node.count &&
          cpus >= launch.cpus_per_node,
      );
    if (group === undefined) return false;
    group.nodes -= launch.node_count;
    return true;
  });
}
