/** Which of the node's addresses others are told, and which the agent listens on. */
import { createSocket } from 'node:dgram';
import { lookup } from 'node:dns/promises';
import { BlockList, isIP } from 'node:net';
import { type NetworkInterfaceInfo, networkInterfaces } from 'node:os';
import { HpcserveError } from '../../spec/errors/error.ts';

export interface AddressChoice {
  /** Best first; never empty. */
  announced: string[];
  /** What to bind to: one address, or all interfaces where several are announced. */
  listen: string;
}

type Interfaces = Readonly<Record<string, NetworkInterfaceInfo[] | undefined>>;

/**
 * @param network interface name or CIDR of the site config: then these addresses and no other
 * @param loopback the local site: nobody beyond this host is told anything
 * @param routed the address from which the host reaches the rest of the job, where that is known
 * @throws HpcserveError E_AGENT_NETWORK
 */
export function chooseAddresses(
  interfaces: Interfaces,
  { network, loopback, routed }: { network?: string; loopback: boolean; routed?: string },
): AddressChoice {
  const all = Object.entries(interfaces).flatMap(([name, infos]) =>
    (infos ?? []).map((info) => ({ name, ...info })),
  );
  if (network !== undefined) {
    const inside = all.filter((info) => info.name === network || isInside(info, network));
    if (inside.length === 0) {
      throw new HpcserveError('E_AGENT_NETWORK', {
        what: `no address of this node is in the network ${network}`,
        because: all.map((info) => `${info.name} has ${info.cidr ?? info.address}`),
      });
    }
    const announced = byPreference(inside).map((info) => info.address);
    return { announced, listen: listenOn(announced) };
  }
  if (loopback) return { announced: ['127.0.0.1'], listen: '127.0.0.1' };
  const outside = byPreference(all.filter((info) => !info.internal && !isLinkLocal(info))).map(
    (info) => info.address,
  );
  const announced = [...new Set([...(routed === undefined ? [] : [routed]), ...outside])].slice(0, 8);
  if (announced.length === 0) return { announced: ['127.0.0.1'], listen: '127.0.0.1' };
  return { announced, listen: listenOn(announced) };
}

/** All interfaces where several addresses are announced; `::` takes IPv4 too, where the host has IPv6 at all. */
function listenOn(announced: readonly string[]): string {
  if (announced.length === 1) return announced[0]!;
  return announced.some((address) => isIP(address) === 6) ? '::' : '0.0.0.0';
}

/** IPv4 first (cluster management networks often route nothing else), then as the system lists them. */
function byPreference<T extends NetworkInterfaceInfo>(infos: T[]): T[] {
  return [...infos].sort((a, b) => Number(a.family === 'IPv6') - Number(b.family === 'IPv6'));
}

function isLinkLocal(info: NetworkInterfaceInfo): boolean {
  return /^(fe80:|169\.254\.)/i.test(info.address);
}

function isInside(info: NetworkInterfaceInfo, cidr: string): boolean {
  const [network, prefix] = cidr.split('/');
  const family = isIP(network ?? '');
  if (family === 0 || prefix === undefined || !/^\d+$/.test(prefix)) return false;
  if ((family === 4) !== (info.family === 'IPv4') || Number(prefix) > (family === 4 ? 32 : 128)) return false;
  const list = new BlockList();
  list.addSubnet(network!, Number(prefix), family === 4 ? 'ipv4' : 'ipv6');
  return list.check(info.address, family === 4 ? 'ipv4' : 'ipv6');
}

/**
 * The source address this host uses towards where the job was launched from: routing decides, nothing is sent
 * (connecting a datagram socket only looks up the route). Undefined where there is no such host or route.
 */
export async function routedAddress(environment: NodeJS.ProcessEnv): Promise<string | undefined> {
  for (const target of [environment.SLURM_LAUNCH_NODE_IPADDR, environment.SLURM_SUBMIT_HOST]) {
    if (target === undefined || target === '') continue;
    const resolved = await lookup(target).catch(() => undefined); // an unknown name is no route
    const address = resolved && (await sourceTowards(resolved.address, resolved.family));
    if (address) return address;
  }
  return undefined;
}

function sourceTowards(address: string, family: number): Promise<string | undefined> {
  return new Promise((resolve) => {
    const socket = createSocket(family === 6 ? 'udp6' : 'udp4');
    const finish = (found: string | undefined): void => {
      socket.close();
      resolve(found);
    };
    socket.once('error', () => finish(undefined));
    socket.connect(9, address, () => finish(socket.address().address));
  });
}

export function hostInterfaces(): Interfaces {
  return networkInterfaces();
}
