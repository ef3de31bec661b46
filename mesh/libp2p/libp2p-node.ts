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
import type { Libp2p, PrivateKey } from '@libp2p/interface';
import { noise } from '@libp2p/noise';
import { tcp } from '@libp2p/tcp';
import { yamux } from '@libp2p/yamux';
import type { Multiaddr } from '@multiformats/multiaddr';
import { createLibp2p } from 'libp2p';
import { limits } from '../../spec/wire.ts';
import { message_bytes_max } from '../gossip/codec.ts';
import { NetworkProof } from './network-proof.ts';

/**
 * Connections at most. A member keeps about 2 · (3 + log2 n) of them; a gateway more, one a node that needs a relay.
 */
const connections_max = 1024;
/** For all handshakes of a connection that comes in. Lower: strangers are held for less long; higher: slow networks. */
const upgrade_ms = 5000;
/** Bytes under way on one stream: bounds what a slow reader costs. Higher: faster over long distances. */
const window_bytes_max = 1024 * 1024;
/**
 * Streams on one connection, each way: tunnels are as many as the port that they lead to takes connections, beside a
 * few of the gossip. What is above is refused, which clients would see as a 502.
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
  onUnauthenticated: () => void;
}

interface Services extends Record<string, unknown> {
  pubsub: GossipSub;
  listening: { listen(address: Multiaddr): Promise<void> };
}

export type MeshNode = Libp2p<Services>;

export async function createNode(options: NodeOptions): Promise<MeshNode> {
  const { network_key, listen, relays, onUnauthenticated } = options;
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
    connectionProtector: () => new NetworkProof({ key: privateNetworkKey(network_key), onUnauthenticated }),
    connectionMonitor: { enabled: false }, // members send heartbeats themselves
    connectionManager: {
      maxConnections: connections_max,
      // An address that leads nowhere must leave time for the next, such as one through a relay; that one takes about
      // ten round trips, which may be 150 ms each.
      addressDialTimeout: 2000,
      // Who has not proved to have the network key is bounded by NetworkProof, and ends to make room for the next one.
      // These two would refuse the next one instead, who may be a member, and count members that share an address as
      // one.
      maxIncomingPendingConnections: Number.POSITIVE_INFINITY,
      inboundConnectionThreshold: Number.POSITIVE_INFINITY,
      inboundUpgradeTimeout: upgrade_ms,
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
  await node.start();
  return node;
}

/** Made in memory and never stored: a process that starts again is a new peer. */
function newKey(): PrivateKey {
  const { d, x } = generateKeyPairSync('ed25519').privateKey.export({ format: 'jwk' });
  return privateKeyFromRaw(Buffer.concat([Buffer.from(d!, 'base64url'), Buffer.from(x!, 'base64url')]));
}

/** The key that connections have to prove, derived from the mesh's: who learns it can forge no record. */
function privateNetworkKey(networkKey: Uint8Array): Uint8Array {
  return new Uint8Array(hkdfSync('sha256', networkKey, '', 'hpcserve libp2p private network v1', 32));
}
