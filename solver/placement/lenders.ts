import type { NodeKindOffer, PlacementQuestion, ResolvedEngine } from '../../spec/plan.ts';
import { findInterconnect } from '../catalog/devices.ts';
import { assumedInterconnects, type Interconnect } from '../catalog/interconnects.ts';
import type { UnitMemory } from './unit-memory.ts';

/** What a replica has on each node that lends it stages. */
export interface LentPart {
  memory: UnitMemory;
  threads: number;
  /** Of all of its stages, what the slowest one takes for a batch. */
  slowest_s: number;
  /** Its devices are like those of the first job. */
  isAlike: boolean;
  /** Against stages that are even, on devices like those of the first job. */
  slowdown: number;
}

/** Where the first job of a replica runs, and what each of those that lend it stages has. */
interface LendingQuestion {
  offer: NodeKindOffer;
  engine: ResolvedEngine;
  devices: number;
  /** Nodes that are lent. */
  nodes: number;
}

/**
 * The nodes whose jobs may lend the later stages of a replica (`parallel.lenders: scavenger`): of tier scavenger, those
 * with devices like the ones of the first job first, and of these the ones that there are most of. The programs of all
 * jobs are of one processor architecture.
 */
export function lendersFor(
  { node_kinds }: Pick<PlacementQuestion, 'node_kinds'>,
  { offer, engine, devices, nodes }: LendingQuestion,
): NodeKindOffer[] {
  return node_kinds
    .filter(
      (other) =>
        other.tier === 'scavenger' &&
        other.nodes_total >= nodes &&
        // Where both have their nodes of one pool, the first job takes one of them.
        (!isOnePool(offer, other) || other.pool!.nodes > nodes) &&
        other.architecture === offer.architecture &&
        other.devices.count >= devices &&
        other.engines[engine]?.available === true,
    )
    .toSorted(
      (a, b) =>
        Number(hasSameDevices(b, offer)) - Number(hasSameDevices(a, offer)) ||
        b.nodes_total - a.nodes_total ||
        (a.node_kind < b.node_kind ? -1 : 1),
    );
}

/** Whether stages may lie on the devices of either as they are cut for one of them. */
export function hasSameDevices(a: NodeKindOffer, b: NodeKindOffer): boolean {
  const { devices: one } = a;
  const { devices: other } = b;
  return (
    hasSameCores(a, b) &&
    JSON.stringify(one.figures) === JSON.stringify(other.figures) &&
    one.kind === other.kind &&
    one.model === other.model &&
    one.memory_bytes === other.memory_bytes &&
    one.emulated === other.emulated &&
    one.emulated_step_ms === other.emulated_step_ms
  );
}

/** CPUs are as fast as their cores and instruction sets. */
function hasSameCores(a: NodeKindOffer, b: NodeKindOffer): boolean {
  if (a.devices.kind !== 'cpu' && a.devices.emulated === undefined) return true;
  const cores = ({ devices, cpus }: NodeKindOffer): number =>
    devices.cores ?? Math.max(1, Math.floor(cpus / devices.count));
  const isa = (offer: NodeKindOffer): string => [...(offer.isa ?? [])].sort().join();
  return cores(a) === cores(b) && isa(a) === isa(b);
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

/** Between the nodes of a replica: the slower of what the nodes of either kind have. */
export function linkBetween(offer: NodeKindOffer, lender = offer): Interconnect {
  const [one, other] = [offer, lender].map(({ interconnect = 'ethernet' }) =>
    findInterconnect(assumedInterconnects[interconnect]),
  ) as [Interconnect, Interconnect];
  return one.bandwidth_bytes_per_s <= other.bandwidth_bytes_per_s ? one : other;
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
