import type { Duplex } from 'node:stream';
import { TopicValidatorResult } from '@libp2p/gossipsub';
import type { Connection, Stream } from '@libp2p/interface';
import { multiaddr } from '@multiformats/multiaddr';
import { every } from '../../host/every.ts';
import { limits } from '../../spec/wire.ts';
import { decodeMessage, encodeMessage, type MessageRejection, message_bytes_max } from '../gossip/codec.ts';
import type { GossipMessage, PeerName } from '../gossip/messages.ts';
import type { SessionTable } from '../session-table.ts';
import { TableAccounts } from '../table-bounds.ts';
import type { MeshTransport, TransportCounters, TransportReceiver } from '../transport.ts';
import { framed, readFrames } from './framing.ts';
import { createNode, type MeshNode } from './libp2p-node.ts';
import { acceptTunnel, openTunnel, type TunnelTarget, tunnelProtocol } from './tunnel.ts';
import { Turns } from './turns.ts';

const protocol = '/hpcserve/gossip/1';
const topic = 'hpcserve/sessions/1';
/** For one attempt to reach a member. Lower: ways that lead nowhere are given up sooner; higher: slow networks. */
const dial_ms = 8000;
/** Least time between two attempts to reach a member. */
const redial_ms = 1000;
/** Messages that wait for a connection, and bytes that wait on one; what is above is dropped. */
const waiting_max = 256;
const unsent_bytes_max = 4 * 1024 * 1024;
/** Members to which a way is remembered, open or in vain. Names cost nothing: a member may make them up. */
const ways_max = 4096;
/** Messages that came and wait for their turn. */
const unread_max = 1024;
/** Tunnels on one connection between two members. */
const tunnels_max = limits.connections;
/** Least time between two words about one member that brings more than it may. */
const excess_told_ms = 60_000;
/** How often missing connections are looked for. */
const keep_ms = 2000;

export interface Libp2pOptions {
  network_key: Uint8Array;
  table: SessionTable;
  /** Multiaddrs to listen on; none where it only connects to others. */
  listen: string[];
  /** Whether it carries connections for members that cannot be reached. */
  relays: boolean;
  /** Where a member listens, as its records say. */
  addressesOf(peer: PeerName): readonly string[];
  /** A member brought more than it may; told again only after a while. */
  onExcess?(peer: PeerName, message: string): void;
  /** Where tunnels to a session of this process lead. */
  tunnelTarget?(session_id: string): TunnelTarget | undefined;
}

/** The way to one member. */
interface Way {
  stream?: Stream;
  waiting: Uint8Array[];
  opening?: Promise<void>;
  failed_ms: number;
}

/** Messages of the mesh over libp2p: one stream each way between two members, and gossipsub for announcements. */
export class Libp2pTransport implements MeshTransport {
  readonly node: MeshNode;
  readonly self: PeerName;
  readonly #options: Libp2pOptions;
  readonly #counters: TransportCounters;
  readonly #ways = new Map<PeerName, Way>();
  readonly #accounts: TableAccounts;
  readonly #turns = new Turns(unread_max);
  /** Members of which was said that they brought more than they may, and when. */
  readonly #excess_ms = new Map<PeerName, number>();
  #kept: readonly PeerName[] = [];
  readonly #stopKeeping: () => void;
  #receiver: TransportReceiver | undefined;
  #closed = false;

  private constructor(node: MeshNode, options: Libp2pOptions, counters: TransportCounters) {
    this.node = node;
    this.self = node.peerId.toString();
    this.#options = options;
    this.#counters = counters;
    this.#accounts = new TableAccounts(options.table);
    this.#stopKeeping = every(keep_ms, () => this.#reconnect());
  }

  static async start(options: Libp2pOptions): Promise<Libp2pTransport> {
    const counters: TransportCounters = { sent: 0, received: 0, undeliverable: 0, rejected: {} };
    const count = (reason: string): void => {
      counters.rejected[reason] = (counters.rejected[reason] ?? 0) + 1;
    };
    const node = await createNode({ ...options, onUnauthenticated: () => count('foreign_key') });
    const transport = new Libp2pTransport(node, options, counters);
    const { pubsub } = node.services;
    pubsub.topicValidators.set(topic, (from, { data }) => transport.#announced(from.toString(), data));
    pubsub.subscribe(topic);
    await node.handle(protocol, (stream, connection) => transport.#accept(stream, connection), {
      runOnLimitedConnection: true,
    });
    const { tunnelTarget } = options;
    if (tunnelTarget) {
      await node.handle(tunnelProtocol, (stream) => acceptTunnel(stream, tunnelTarget), {
        runOnLimitedConnection: true,
        maxInboundStreams: tunnels_max,
      });
    }
    node.addEventListener('peer:disconnect', ({ detail }) => {
      const peer = detail.toString();
      transport.#ways.delete(peer);
      if (!transport.#closed) transport.#receiver?.lost(peer);
    });
    return transport;
  }

  /** Multiaddrs at which it listens, without its name. */
  addresses(): string[] {
    return this.node.getMultiaddrs().map((address) => address.toString().replace(`/p2p/${this.self}`, ''));
  }

  listen(receiver: TransportReceiver): void {
    this.#receiver = receiver;
  }

  send(to: PeerName, message: GossipMessage): void {
    if (this.#closed || to === this.self) return;
    const bytes = framed(encodeMessage(message));
    const way = this.#wayTo(to);
    if (!way) {
      this.#counters.undeliverable++;
      return;
    }
    if (way.stream?.status === 'open') {
      this.#write(way.stream, bytes);
      return;
    }
    if (performance.now() - way.failed_ms < redial_ms || way.waiting.length >= waiting_max) {
      this.#counters.undeliverable++;
      return;
    }
    way.waiting.push(bytes);
    this.#open(to, way);
  }

  announce(message: GossipMessage): void {
    if (this.#closed) return;
    this.#counters.sent++;
    this.node.services.pubsub.publish(topic, encodeMessage(message)).catch(() => {
      // Nobody is connected, or reads too slowly: push-pulls make up for it.
      this.#counters.undeliverable++;
    });
  }

  keep(peers: readonly PeerName[]): void {
    this.#kept = peers;
    this.#reconnect();
  }

  async dial(address: string): Promise<PeerName> {
    const connection = await this.node.dial(multiaddr(address), { signal: AbortSignal.timeout(dial_ms) });
    return connection.remotePeer.toString();
  }

  /** Makes itself reachable through a member that relays; its address there is among `addresses` from then on. */
  async listenThrough(relay: string): Promise<void> {
    const peer = await this.dial(relay);
    await this.node.services.listening.listen(multiaddr(`${relay}/p2p/${peer}/p2p-circuit`));
  }

  /** A connection to a session through the peer that speaks for it. @throws Error where that cannot be reached */
  async tunnel(peer: PeerName, session_id: string): Promise<Duplex> {
    const connection = await this.connect(peer);
    const stream = await connection.newStream(tunnelProtocol, {
      runOnLimitedConnection: true,
      maxOutboundStreams: tunnels_max,
      signal: AbortSignal.timeout(dial_ms),
    });
    return openTunnel(stream, session_id);
  }

  /** A connection to a member, made where there is none. @throws Error where it cannot be reached */
  async connect(peer: PeerName): Promise<Connection> {
    const open = this.node.getConnections().find((one) => {
      return one.remotePeer.toString() === peer && one.status === 'open';
    });
    if (open) return open;
    const addresses = this.#options.addressesOf(peer);
    if (addresses.length === 0) throw new Error('no address of it is known');
    const targets = addresses.map((address) => multiaddr(`${address}/p2p/${peer}`));
    return await this.node.dial(targets, { signal: AbortSignal.timeout(dial_ms) });
  }

  peers(): PeerName[] {
    return this.node.getPeers().map((peer) => peer.toString());
  }

  counters(): TransportCounters {
    return this.#counters;
  }

  async close(): Promise<void> {
    this.#closed = true;
    this.#stopKeeping();
    await this.node.stop();
  }

  /** @returns undefined where more ways are open than there may be */
  #wayTo(to: PeerName): Way | undefined {
    const known = this.#ways.get(to);
    if (known) return known;
    if (this.#ways.size >= ways_max) {
      for (const [peer, { stream, opening }] of this.#ways)
        if (!opening && stream?.status !== 'open') this.#ways.delete(peer);
      if (this.#ways.size >= ways_max) return undefined;
    }
    const way: Way = { waiting: [], failed_ms: Number.NEGATIVE_INFINITY };
    this.#ways.set(to, way);
    return way;
  }

  #open(to: PeerName, way: Way): void {
    way.opening ??= (async () => {
      try {
        const connection = await this.connect(to);
        const stream = await connection.newStream(protocol, {
          runOnLimitedConnection: true,
          signal: AbortSignal.timeout(dial_ms),
        });
        stream.inactivityTimeout = Number.MAX_SAFE_INTEGER;
        way.stream = stream;
        for (const bytes of way.waiting) this.#write(stream, bytes);
      } catch {
        // Not there, or not reachable: what to think of that is the members' business.
        way.failed_ms = performance.now();
        this.#counters.undeliverable += way.waiting.length;
      } finally {
        way.waiting = [];
        delete way.opening;
      }
    })();
  }

  #write(stream: Stream, bytes: Uint8Array): void {
    if (stream.writeBufferLength > unsent_bytes_max || stream.status !== 'open') {
      this.#counters.undeliverable++;
      return;
    }
    try {
      stream.send(bytes);
      this.#counters.sent++;
    } catch {
      this.#counters.undeliverable++; // it closed in this moment
    }
  }

  #accept(stream: Stream, connection: Connection): void {
    const from = connection.remotePeer.toString();
    stream.inactivityTimeout = Number.MAX_SAFE_INTEGER;
    const read = (bytes: Uint8Array): void => {
      const isTaken = this.#turns.run(() => {
        if (this.#closed) return;
        const message = this.#decode(from, bytes);
        if (message) this.#receiver?.message(from, message);
      });
      if (!isTaken) this.#reject('flood');
    };
    readFrames(stream, message_bytes_max, read, () => this.#reject('oversized'));
  }

  #announced(from: PeerName, bytes: Uint8Array): TopicValidatorResult {
    const message = this.#decode(from, bytes);
    if (!message || !this.#receiver) return TopicValidatorResult.Reject;
    const isNew = this.#receiver.announcement(from, message);
    return isNew ? TopicValidatorResult.Accept : TopicValidatorResult.Ignore;
  }

  #decode(from: PeerName, bytes: Uint8Array): GossipMessage | undefined {
    this.#counters.received++;
    const { table, network_key } = this.#options;
    const reject = (reason: MessageRejection, message: string): void => {
      this.#reject(reason);
      if (reason === 'too_fast' || reason === 'too_much') this.#tellExcess(from, `${reason}: ${message}`);
    };
    return decodeMessage(bytes, table, network_key, reject, {
      takes: (more) => this.#accounts.takes(from, more, performance.now()),
      excess: (entry) => this.#accounts.excess(entry),
    });
  }

  #tellExcess(from: PeerName, message: string): void {
    const now_ms = performance.now();
    if (now_ms - (this.#excess_ms.get(from) ?? Number.NEGATIVE_INFINITY) < excess_told_ms) return;
    this.#excess_ms.delete(from);
    this.#excess_ms.set(from, now_ms);
    const [oldest] = this.#excess_ms.keys();
    if (this.#excess_ms.size > ways_max) this.#excess_ms.delete(oldest!);
    this.#options.onExcess?.(from, message);
  }

  #reject(reason: string): void {
    const { rejected } = this.#counters;
    rejected[reason] = (rejected[reason] ?? 0) + 1;
  }

  #reconnect(): void {
    if (this.#closed) return;
    const connected = new Set(this.peers());
    for (const peer of this.#kept) {
      if (connected.has(peer) || peer === this.self) continue;
      this.connect(peer).catch(() => undefined); // tried again soon
    }
  }
}
