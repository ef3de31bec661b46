import type { SessionIdentity } from '../../mesh/index.ts';
import type { TransferMemory } from '../../native/fabric/memory.ts';
import { HpcserveError } from '../../spec/errors/error.ts';

/** What both sides of transfers need to know of this worker. */
export interface TransferOptions {
  /** What is sent from and received into: a pool, or staging memory. */
  memory: TransferMemory;
  /** What this worker shows where bytes are encrypted; its peers learn it over the mesh. */
  own: SessionIdentity;
  /** The address that peers reach this worker at; also whence it connects over a fabric. */
  host: string;
  /** Ports that may be listened on, first and last; absent: any that is free. */
  port_range?: readonly [number, number];
  /**
   * `network.private_fabric` of the site: nobody else can listen on the network. Otherwise bytes that leave the node
   * are encrypted, RDMA is not used, and sendfile only within the node.
   */
  private_fabric: boolean;
  /**
   * Providers of libfabric that may be used, best first, by libfabric's names: `cxi`, `efa`, `verbs`, and within a
   * node `shm`.
   */
  providers: readonly string[];
  /** What may come at once; absent: whatever `memory` holds. Peers send a sequence that is larger in parts. */
  transfer_bytes_max?: number;
  /** Something works worse than it should: told once each time. */
  warn(notice: HpcserveError): void;
}

/** Where two workers of one node meet: nobody else but root hears what passes there, and both show a ticket. */
export const loopback = '127.0.0.1';

/** Ports in the order in which they are tried. */
export function portsOf({ port_range }: TransferOptions): readonly number[] {
  if (!port_range) return [0];
  const [first, last] = port_range;
  return Array.from({ length: last - first + 1 }, (_, at) => first + at);
}

/** A way that does not work, for logs and reports. */
export function brokenWay(peer: string, way: string, because: string, more: string[] = []): HpcserveError {
  return new HpcserveError('E_KV_FABRIC', {
    what: `keys and values cannot travel by ${way} between this worker and ${peer}`,
    because: [because, ...more],
    details: { peer, way },
  });
}
