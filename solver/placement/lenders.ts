import type { NodeKindOffer, PlacementQuestion, ResolvedEngine } from '../../spec/plan.ts';

/** What a job that lends stages needs of its node. */
interface LentPart {
  /** Where the first job runs. */
  offer: NodeKindOffer;
  engine: ResolvedEngine;
  devices: number;
  threads: number;
  /** Nodes that are lent. */
  nodes: number;
}

/**
 * The nodes whose jobs lend the later stages of a replica (`parallel.lenders: scavenger`): of tier scavenger, with
 * devices like those of the first job, since a pipeline is cut for one kind of them; of several kinds the one with most
 * nodes.
 * @returns undefined where there are none
 */
export function lenderOf(
  { node_kinds }: Pick<PlacementQuestion, 'node_kinds'>,
  { offer, engine, devices, threads, nodes }: LentPart,
): NodeKindOffer | undefined {
  return node_kinds
    .filter(
      (other) =>
        other.tier === 'scavenger' &&
        other.nodes_total >= nodes &&
        other.architecture === offer.architecture &&
        hasSameDevices(other, offer) &&
        other.devices.count >= devices &&
        other.cpus >= threads &&
        other.memory_bytes >= offer.memory_bytes &&
        other.engines[engine]?.available === true,
    )
    .toSorted((a, b) => b.nodes_total - a.nodes_total || (a.node_kind < b.node_kind ? -1 : 1))[0];
}

function hasSameDevices({ devices: one }: NodeKindOffer, { devices: other }: NodeKindOffer): boolean {
  return (
    one.kind === other.kind &&
    one.model === other.model &&
    one.memory_bytes === other.memory_bytes &&
    one.emulated === other.emulated &&
    one.emulated_step_ms === other.emulated_step_ms
  );
}

/** Of the nodes that a replica takes, those of its first job's kind, or of what that kind shares with others. */
export function ownNodes({
  offer,
  nodes,
  lender = offer,
}: {
  offer: NodeKindOffer;
  nodes: number;
  lender?: NodeKindOffer | undefined;
}): number {
  return lender === offer || isOnePool(offer, lender) ? nodes : 1;
}

/** Whether their nodes are the same ones, in part at least. */
export function isOnePool({ pool }: NodeKindOffer, other: NodeKindOffer): boolean {
  return pool !== undefined && pool.id === other.pool?.id;
}

/** For how long such a job asks; another takes its place when it ends. Undefined: no limit is asked for. */
export function lentTime_s(
  { time_limit_s }: Pick<PlacementQuestion, 'time_limit_s'>,
  lender: NodeKindOffer,
): number | undefined {
  const asked = time_limit_s ?? lender.time_limit_default_s;
  const most = lender.time_limit_max_s;
  return asked === undefined || most === undefined ? asked : Math.min(asked, most);
}
