/** What the environment of every wrapped engine has where neither the site nor model.yaml says otherwise. */
import { type NetworkInterfaceInfo, networkInterfaces } from 'node:os';
import type { UnitSpec } from '../../spec/launch.ts';
import type { RankPlace } from './rank-rendezvous.ts';

type Interfaces = Readonly<Record<string, NetworkInterfaceInfo[] | undefined>>;

interface Where {
  /** Absent: all of it is on this node. */
  place?: Pick<RankPlace, 'address'> | undefined;
  /** Of the site config: where the ranks of an engine talk to each other. */
  engine_interfaces?: readonly string[] | undefined;
}

/**
 * Models are files that were looked at before the job, so nothing is asked of the hub: a node without a way out would
 * wait for it. Ranks meet on loopback where they are on one node, which nobody else's node reaches; over several nodes,
 * on those interfaces of the site config that this node has, else on that of the address that the agent announces: NCCL
 * and Gloo look for one of their own otherwise.
 */
export function environmentDefaults(
  unit: UnitSpec,
  { place, engine_interfaces }: Where,
  interfaces: Interfaces = networkInterfaces(),
): Record<string, string> {
  const defaults: Record<string, string> = { HF_HUB_OFFLINE: '1', HF_HUB_DISABLE_TELEMETRY: '1' };
  if (unit.tensor * unit.pipeline === 1) return defaults;
  // Gloo ends where one of the names is of no interface, and nodes of a site may have fewer than others.
  const there = place && engine_interfaces?.filter((name) => interfaces[name] !== undefined);
  const chosen = there?.length
    ? there.join(',')
    : interfaceWith(interfaces, place === undefined ? '127.0.0.1' : place.address);
  if (chosen !== undefined) {
    defaults.NCCL_SOCKET_IFNAME = chosen;
    defaults.GLOO_SOCKET_IFNAME = chosen;
  }
  return defaults;
}

function interfaceWith(interfaces: Interfaces, address: string): string | undefined {
  return Object.entries(interfaces).find(([, infos]) => infos?.some((info) => info.address === address))?.[0];
}
