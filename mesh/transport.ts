import type { GossipMessage, PeerName } from './gossip/messages.ts';

/** What a transport did since it began. */
export interface TransportCounters {
  sent: number;
  received: number;
  /** Sent to nobody: no way to the receiver was found, or it does not read fast enough. */
  undeliverable: number;
  /** Messages that did not count, by reason; connections that were refused. */
  rejected: Record<string, number>;
}

/**
 * Carries messages between members. A message may be lost, repeated or late; the sender named with it is who sent it.
 * Implementations: libp2p, and one in memory by seed for simulation.
 */
export interface MeshTransport {
  readonly self: PeerName;
  /** To one member; a connection is made where there is none. */
  send(to: PeerName, message: GossipMessage): void;
  /** To all members, passed on by those who find something new in it. */
  announce(message: GossipMessage): void;
  /** Connections to have and to keep: announcements travel along them. */
  keep(peers: readonly PeerName[]): void;
  /** @throws Error where nobody of this mesh answers at the address */
  dial(address: string): Promise<PeerName>;
  peers(): PeerName[];
  counters(): TransportCounters;
  listen(receiver: TransportReceiver): void;
  close(): Promise<void>;
}

export interface TransportReceiver {
  message(from: PeerName, message: GossipMessage): void;
  /** @returns whether it is worth passing on */
  announcement(from: PeerName, message: GossipMessage): boolean;
  /** The last connection to a member ended, by whichever side. */
  lost(peer: PeerName): void;
}

/** Time, real or simulated. */
export interface Clock {
  now_ms(): number;
  /** Runs the callback once; returns what takes it back. */
  at(at_ms: number, callback: () => void): () => void;
}
