/**
 * Free nodes without those that others are about to take: launches that were planned or wait in the queue had the same
 * nodes in sight. Pure.
 */
import type { NodeKindOffer, NodeSpace, PlannedLaunch } from '../../spec/plan.ts';

/**
 * The offers with less free, as if each launch had started where it fits now; one that fits nowhere waits for others
 * and takes nothing.
 */
export function withoutExpected(
  offers: readonly NodeKindOffer[],
  launches: readonly Pick<PlannedLaunch, 'node_kind' | 'node_count' | 'devices_per_node' | 'cpus_per_node'>[],
): NodeKindOffer[] {
  let left = [...offers];
  for (const launch of launches) {
    const { node_kind, devices_per_node } = launch;
    const own = left.find(
      (offer) => offer.node_kind === node_kind && offer.devices.model === devices_per_node.model,
    );
    if (own?.free === undefined) continue;
    // Kinds of one pool are the same nodes: what is taken of one is taken of all.
    left = left.map((offer) => {
      const isSame = offer === own || (own.pool !== undefined && offer.pool?.id === own.pool.id);
      return isSame && offer.free ? { ...offer, free: takenFrom(offer.free, launch, offer) } : offer;
    });
  }
  return left;
}

function takenFrom(
  free: readonly NodeSpace[],
  { node_count, devices_per_node: { count }, cpus_per_node }: Parameters<typeof withoutExpected>[1][number],
  { whole_nodes, devices, cpus }: NodeKindOffer,
): NodeSpace[] {
  // A job without GPUs takes its part of the devices that CPUs are.
  const taken = whole_nodes
    ? devices.count
    : Math.max(count, Math.ceil((devices.count * cpus_per_node) / cpus));
  const at = free.findIndex(
    (group) => group.nodes >= node_count && group.devices >= count && group.cpus >= cpus_per_node,
  );
  if (at < 0) return [...free];
  const group = free[at]!;
  const rest: NodeSpace = {
    nodes: node_count,
    devices: Math.max(0, group.devices - taken),
    cpus: Math.max(0, group.cpus - cpus_per_node),
  };
  return free
    .toSpliced(at, 1, { ...group, nodes: group.nodes - node_count }, rest)
    .filter(({ nodes }) => nodes > 0);
}

/**
 * The offers of a machine that nobody asks a queue about, without the accelerators that launches there have: a worker
 * has its device alone.
 */
export function withoutHeld(
  offers: readonly NodeKindOffer[],
  launches: readonly Pick<PlannedLaunch, 'node_kind' | 'devices_per_node'>[],
): NodeKindOffer[] {
  return offers.flatMap((offer) => {
    const { kind, model, count } = offer.devices;
    if (kind === 'cpu') return [offer];
    const held = launches
      .filter((launch) => launch.node_kind === offer.node_kind && launch.devices_per_node.model === model)
      .reduce((sum, launch) => sum + launch.devices_per_node.count, 0);
    if (held >= count) return [];
    return [{ ...offer, devices: { ...offer.devices, count: count - held } }];
  });
}
