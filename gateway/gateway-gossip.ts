import { networkInterfaces } from 'node:os';
import {
  MeshPeer,
  type MeshPeerStatus,
  RelayFallback,
  type RendezvousRegistry,
  type SessionStatus,
} from '../mesh/index.ts';
import type { GatewayConfig } from '../spec/state-layout.ts';
import type { GatewayLog } from './log.ts';

/** What members told and were refused, of the folder and of the gossip. */
export interface MeshStatus {
  /** Absent where the gateway takes no part in the gossip, or not yet. */
  gossip?: MeshPeerStatus;
  /** Files of the folder that did not count, by reason. */
  folder_rejected: Partial<Record<string, number>>;
}

/**
 * The gateway's part in the gossip: it hears of sessions that its folder does not have, and carries connections to
 * members that cannot be reached. It comes beside the folder, never in its place.
 */
export class GatewayGossip {
  readonly #registry: RendezvousRegistry;
  readonly #joining: Promise<void>;
  /** To sessions of other sites that cannot be reached directly. */
  readonly relayFallback = new RelayFallback((record) => {
    return (
      this.#peer?.tunnel(record) ?? Promise.reject(new Error('this gateway takes no part in the gossip'))
    );
  });
  #peer: MeshPeer | undefined;

  constructor(registry: RendezvousRegistry, config: GatewayConfig, log: GatewayLog) {
    this.#registry = registry;
    this.#joining = this.#join(config, log);
  }

  sessionStatus(session_id: string): SessionStatus {
    return this.#peer?.sessionStatus(session_id) ?? { sources: this.#registry.table.sourcesOf(session_id) };
  }

  status(): MeshStatus {
    const status: MeshStatus = { folder_rejected: this.#registry.status().rejected };
    if (this.#peer) status.gossip = this.#peer.status();
    return status;
  }

  async close(): Promise<void> {
    await this.#joining;
    await this.#peer?.close();
    this.#peer = undefined;
  }

  async #join({ mesh }: GatewayConfig, log: GatewayLog): Promise<void> {
    if (!mesh) return;
    const host = mesh.host ?? '127.0.0.1';
    const port = mesh.port ?? 0;
    try {
      this.#peer = await MeshPeer.join(this.#registry, {
        listen: { host, ports: [port, port] },
        announce: announcedHosts(host),
        bootstrap: mesh.bootstrap,
        relay: mesh.relay,
        relays: true,
        onTrouble: (message) => log.warn({ message }, 'gossip'),
      });
      const { peer, addresses } = this.#peer.status();
      log.info({ peer, addresses }, 'joined the gossip');
    } catch (error) {
      log.warn({ error: String(error) }, 'no part in the gossip; the folder does the work');
    }
  }
}

/** The addresses behind "all": those that other hosts can reach, IPv4 first. */
function announcedHosts(host: string): string[] {
  if (host !== '0.0.0.0' && host !== '::') return [host];
  const outside = Object.values(networkInterfaces())
    .flatMap((infos) => infos ?? [])
    .filter(({ internal, address }) => !internal && !/^(fe80:|169\.254\.)/i.test(address));
  const ordered = outside.sort((a, b) => Number(a.family === 'IPv6') - Number(b.family === 'IPv6'));
  const usable = host === '::' ? ordered : ordered.filter(({ family }) => family === 'IPv4');
  return usable.length > 0 ? usable.map(({ address }) => address).slice(0, 8) : ['127.0.0.1'];
}
