import type { FabricPlace } from '../../pipeline/fabric-frames.ts';

/** Where and how a device worker reaches others that its running answers can move to. */
export interface MovesPlace {
  /** Unix socket on which the agent says who there is, and brings messages to them (`KvPeers`). */
  socket: string;
  /** An address at which others reach this node. */
  host: string;
  /** Ports that may be listened on, first and last; absent: any that is free. */
  port_range: readonly [number, number] | undefined;
  /** `network.private_fabric` of the site. */
  private_fabric: boolean;
  /** `network.fabrics` of the site; absent: those that are made for it. */
  fabrics: readonly string[] | undefined;
}

/** Where frames of pipelines may take the fabric, too. */
export function fabricPlaceOf({ host, private_fabric, fabrics }: MovesPlace): FabricPlace | undefined {
  if (!private_fabric) return undefined;
  return { host, providers: fabrics ?? fabrics_default, are_named: fabrics !== undefined };
}

/** Providers of libfabric that are tried where the site names none, best first. */
export const fabrics_default: readonly string[] = ['cxi', 'efa', 'verbs', 'shm'];
