/** What joined nodes offer to placement, each as a node kind of its own. */
import type { NodeKindOffer } from '../../spec/plan.ts';
import type { SiteConfig } from '../../spec/site.ts';
import type { StateLayout } from '../../spec/state-layout.ts';
import { inspectJoinedNodes } from '../state/joined-nodes.ts';
import { enginesOf } from './site-offers.ts';

/** Of what an allocation has, so much is planned with: the agent, its log and Node itself need some. */
const memory_share = 0.9;
/** A node that leaves sooner is not worth loading a model on. */
const worthwhile_ms = 5 * 60_000;

/**
 * Nodes that are there and free, and those that the deployment itself has.
 * @param ownLaunches of the deployment that is planned; all: whoever has a node
 */
export function joinedOffers(
  site: SiteConfig,
  layout: StateLayout,
  environment: Readonly<Record<string, string | undefined>>,
  ownLaunches: ReadonlySet<string> | 'all',
  now_ms: number,
): NodeKindOffer[] {
  const isOwn = (launch: string): boolean => ownLaunches === 'all' || ownLaunches.has(launch);
  return inspectJoinedNodes(layout).flatMap(({ node, there, open_orders }): NodeKindOffer[] => {
    const [device] = node.devices;
    if (!there || !device || !open_orders.every(isOwn)) return [];
    const count = node.devices.length;
    const idle = open_orders.length === 0;
    // Of how long it stays nothing is promised to the plan: that would be another offer every second.
    if ((node.job_end_time_ms ?? Number.POSITIVE_INFINITY) - now_ms < worthwhile_ms) return [];
    const memory_bytes = Math.floor(device.memory_bytes * (device.kind === 'cpu' ? memory_share : 1));
    return [
      {
        node_kind: node.node_kind,
        tier: node.tier,
        partitions: [],
        nodes_total: 1,
        nodes_idle: idle ? 1 : 0,
        free: idle ? [{ nodes: 1, devices: count, cpus: node.cpus }] : [],
        cpus: node.cpus,
        memory_bytes: Math.floor(node.memory_bytes * memory_share),
        devices: { kind: device.kind, model: device.model, count, memory_bytes },
        engines: enginesOf(
          site,
          { kind: device.kind, model: device.model, count, memory_gb: memory_bytes / 1e9 },
          environment,
          node.isa,
        ),
        isa: node.isa,
        architecture: node.architecture,
      },
    ];
  });
}
