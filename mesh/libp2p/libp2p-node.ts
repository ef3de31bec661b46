/**
 * A libp2p node as the mesh needs it: TCP, a private network by key, noise, yamux, gossipsub, and relays for members
 * that cannot be reached. Whoever lacks the network key does not get beyond the first bytes.
 *
 * kad-dht is left out: every member holds the whole table with all addresses, so there is nothing to look up.
 */
import './promise-with-resolvers.ts';
import { createHash, generateKeyPairSync, hkdfSync } from 'node:crypto';
import { circuitRelayServer, circuitRelayTransport } from '@libp2p/circuit-relay-v2';
import { privateKeyFromRaw } from '@libp2p/crypto/keys';
import { type GossipSub, gossipsub } from '@libp2p/gossipsub';
import { identify } from '@libp2p/identify';
import type { AbortOptions, ConnectionProtector, Libp2p, MessageStream, PrivateKey } from '@libp2p/interface';
import { noise } from '@libp2p/noise';
import { preSharedKey } from '@libp2p/pnet';
import { tcp } from '@libp2p/tcp';
import { yamux } from '@libp2p/yamux';
import type { Multiaddr } from '@multiformats/multiaddr';
import { createLibp2p } from 'libp2p';
import { limits } from '../../spec/wire.ts';
import { message_bytes_max } from '../gossip/codec.ts';

/** Connections at most. A member keeps about 2 · (3 + log2 n) of them; a gateway more, one a node that needs a relay. */
const connections_max = 1024;
/** Bytes under way on one stream: bounds what a slow reader costs. Higher: faster over long distances. */
const window_bytes_max = 1024 * 1024;
/**
 * Streams on one connection, each way: tunnels are as many as the port that they lead to takes connections, beside a few of
 * the gossip. What is above is refused, which clients would see as a 502.
 */
const streams_max = limits.connections + 64;
/** Members that one relay carries at most. */
const reservations_max = 1024;
/** Gossipsub's D and its bounds: links along which an announcement is passed on. */
const degree = { D: 11, Dlo: 8, Dhi: 16, Dlazy: 6 };

export interface NodeOptions {
  network_key: Uint8Array;
  /** Multiaddrs to listen on. */
  listen: string[];
  /** Whether it carries connections for members that cannot be reached. */
  relays: boolean;
  /** A connection came that did not prove to have the network key. */
  onStranger: () => void;
}

interface Services extends Record<string, unknown> {
  pubsub: GossipSub;
  listening: { listen(address: Multiaddr): Promise<void> };
}

export type MeshNode = Libp2p<Services>;

export async function createNode(options: NodeOptions): Promise<MeshNode> {
  const { network_key, listen, relays, onStranger } = options;
  let strangers: StrangerCounter | undefined;
  const node = await createLibp2p<Services>({
    start: false,
    privateKey: newKey(),
    addresses: { listen },
    transports: [tcp(), circuitRelayTransport()],
    connectionEncrypters: [noise()],
    streamMuxers: [
      yamux({
        maxInboundStreams: streams_max,
        maxOutboundStreams: streams_max,
        streamOptions: {
          inactivityTimeout: Number.MAX_SAFE_INTEGER,
          maxStreamWindowSize: window_bytes_max,
          // A reader that pauses still gets what the sender's window allows.
          maxReadBufferLength: 2 * window_bytes_max,
        },
      }),
    ],
    connectionProtector: () => {
      strangers = new StrangerCounter(preSharedKey({ psk: swarmKey(network_key) })(), onStranger);
      return strangers;
    },
    connectionMonitor: { enabled: false }, // members send signs of life themselves
    connectionManager: {
      maxConnections: connections_max,
      // An address that leads nowhere must leave time for the next, such as one through a relay; that one takes about
      // ten round trips, which may be 150 ms each.
      addressDialTimeout: 2000,
      maxIncomingPendingConnections: 64,
      inboundConnectionThreshold: 512, // many members may share an address
      inboundUpgradeTimeout: 5000,
      reconnectRetries: 0,
    },
    services: {
      identify: identify(),
      pubsub: gossipsub({
        ...degree,
        // Entries are signed by their sessions; who passed a message on proves nothing.
        globalSignaturePolicy: 'StrictNoSign',
        msgIdFn: ({ data }) => createHash('sha256').update(data).digest(),
        allowPublishToZeroTopicPeers: true,
        ignoreDuplicatePublishError: true,
        floodPublish: true,
        runOnLimitedConnection: true,
        maxInboundDataLength: message_bytes_max,
        scoreParams: { IPColocationFactorWeight: 0 },
      }),
      listening: (components: { transportManager: { listen(addresses: Multiaddr[]): Promise<void> } }) => ({
        listen: (address: Multiaddr) => components.transportManager.listen([address]),
      }),
      ...(relays
        ? {
            // Without libp2p's own limits of 128 KiB and two minutes: only members get here.
            relay: circuitRelayServer({
              maxInboundHopStreams: reservations_max,
              maxOutboundStopStreams: reservations_max,
              reservations: { applyDefaultLimit: false, maxReservations: reservations_max },
            }),
          }
        : {}),
    },
  });
  node.addEventListener('connection:open', ({ detail }) => strangers?.proved(detail.remoteAddr.toString()));
  await node.start();
  return node;
}

/** Made in memory and never stored: a process that starts again is a new peer. */
function newKey(): PrivateKey {
  const { d, x } = generateKeyPairSync('ed25519').privateKey.export({ format: 'jwk' });
  return privateKeyFromRaw(Buffer.concat([Buffer.from(d!, 'base64url'), Buffer.from(x!, 'base64url')]));
}

/** The key of libp2p's private network in its own file format, derived from the mesh's. */
function swarmKey(networkKey: Uint8Array): Uint8Array {
  const key = Buffer.from(hkdfSync('sha256', networkKey, '', 'hpcserve libp2p private network v1', 32));
  return Buffer.from(`/key/swarm/psk/1.0.0/\n/base16/\n${key.toString('hex')}`);
}

/** Notices connections from outside that end before they have become ones of a member. */
class StrangerCounter implements ConnectionProtector {
  readonly #protector: ConnectionProtector;
  /** Addresses of connections that have not shown yet that they have the key. */
  readonly #pending = new Set<string>();
  readonly #onStranger: () => void;

  constructor(protector: ConnectionProtector, onStranger: () => void) {
    this.#protector = protector;
    this.#onStranger = onStranger;
  }

  async protect(connection: MessageStream, options?: AbortOptions): Promise<MessageStream> {
    if (connection.direction === 'inbound' && 'remoteAddr' in connection) {
      const address = String(connection.remoteAddr);
      this.#pending.add(address);
      connection.addEventListener('close', () => {
        if (this.#pending.delete(address)) this.#onStranger();
      });
    }
    return await this.#protector.protect(connection, options);
  }

  /** A connection from there went through all handshakes. */
  proved(address: string): void {
    this.#pending.delete(address);
  }
}
