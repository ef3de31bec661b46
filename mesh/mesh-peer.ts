import type { Duplex } from 'node:stream';
import type { SessionRecord } from '../spec/session-record.ts';
import { openEntry } from './entry.ts';
import { GossipDriver } from './gossip/driver.ts';
import { GossipMember } from './gossip/member.ts';
import type { PeerName, SessionLoad } from './gossip/messages.ts';
import { gossipPresets } from './gossip/settings.ts';
import type { Libp2pTransport } from './libp2p/libp2p-transport.ts';
import { sealTombstone, type Tombstone } from './record-codec.ts';
import type { RendezvousRegistry } from './rendezvous-registry.ts';
import { SessionIdentity } from './session-identity.ts';
import type { EntrySource } from './session-table.ts';
import type { Clock } from './transport.ts';

/** How often members of other sites are looked for while none is known, or a way through a relay is missing. */
const bootstrap_ms = 5000;

export interface MeshPeerOptions {
  /** IP address to listen on; `0.0.0.0` for all. Absent: it listens nowhere, and is reached through relays. */
  listen?: { host: string; ports: readonly [first: number, last: number] };
  /** Hosts under which others reach it, best first; with the port that it got. */
  announce: string[];
  /** Members of other sites, each `HOST:PORT`. */
  bootstrap: readonly string[];
  /** Members that carry connections to this one, each `HOST:PORT`. */
  relay: readonly string[];
  /** Whether it carries connections for others. */
  relays: boolean;
  /** Where a session of this process answers, for tunnels that come to it. */
  tunnelTarget?: (session_id: string) => { host: string; port: number } | undefined;
  /** Something that others should read in a log. */
  onTrouble: (message: string) => void;
}

/** What the gossip knows of a session beside its record. */
export interface SessionStatus {
  sources: EntrySource[];
  /** Time since its last heartbeat came here, ms; absent where none did. */
  heard_ms_ago?: number;
  load?: SessionLoad;
}

export interface MeshPeerStatus {
  peer: PeerName;
  addresses: string[];
  /** Members on the ring, this one included; and those it is connected with. */
  members: number;
  connected: number;
  sent: number;
  received: number;
  undeliverable: number;
  /** What did not count, by reason. */
  rejected: Record<string, number>;
}

/** This process as a member of the gossip: it speaks for the sessions that it publishes in its registry. */
export class MeshPeer {
  readonly #registry: RendezvousRegistry;
  readonly #options: MeshPeerOptions;
  readonly #transport: Libp2pTransport;
  readonly #driver: GossipDriver;
  readonly #timer: NodeJS.Timeout;
  #looking = false;
  /** What was told already. */
  readonly #troubles = new Set<string>();

  private constructor(
    registry: RendezvousRegistry,
    options: MeshPeerOptions,
    transport: Libp2pTransport,
    driver: GossipDriver,
  ) {
    this.#registry = registry;
    this.#options = options;
    this.#transport = transport;
    this.#driver = driver;
    this.#timer = setInterval(() => void this.#lookAround(), bootstrap_ms);
    this.#timer.unref();
  }

  /**
   * Joins the gossip; own sessions of the registry name this peer from then on. @throws Error where it cannot listen
   */
  static async join(registry: RendezvousRegistry, options: MeshPeerOptions): Promise<MeshPeer> {
    // Loaded here, since most commands need no network of members.
    const { Libp2pTransport } = await import('./libp2p/libp2p-transport.ts');
    const { table, network_key } = registry;
    const book = new AddressBook(registry);
    const { listen } = options;
    const start = (addresses: string[]): Promise<Libp2pTransport> =>
      Libp2pTransport.start({
        network_key,
        table,
        listen: addresses,
        relays: options.relays,
        ...(options.tunnelTarget ? { tunnelTarget: options.tunnelTarget } : {}),
        addressesOf: (peer) => book.addressesOf(peer),
        onExcess: (peer, message) => options.onTrouble(`member ${peer} brings more than it may: ${message}`),
      });
    const transport = listen ? await startOnFreePort(listen, start) : await start([]);
    const reporter = await SessionIdentity.create();
    const clock = monotonicClock;
    const member = new GossipMember({
      self: transport.self,
      table,
      sealTombstone: (session_id, evidence, seen) => {
        const tombstone: Tombstone = { session_id, evidence };
        if (seen) tombstone.seen = seen;
        return openEntry({ tombstone: sealTombstone(tombstone, reporter, network_key) }, network_key);
      },
      refute: (session_id, seen) => registry.dispute(session_id, seen),
      settings: gossipPresets.lan,
      now_ms: () => clock.now_ms(),
      random: Math.random,
    });
    const peer = new MeshPeer(
      registry,
      options,
      transport,
      new GossipDriver(member, table, transport, clock),
    );
    await peer.#lookAround();
    peer.#announce();
    return peer;
  }

  /** A connection to a session through its peer. @throws Error where it has none, or that cannot be reached */
  async tunnel({ session_id, metadata: { peer } }: SessionRecord): Promise<Duplex> {
    if (!peer) throw new Error('no peer speaks for it');
    return await this.#transport.tunnel(peer.id, session_id);
  }

  /** What the heartbeats of an own session carry. */
  setLoad(session_id: string, load: SessionLoad): void {
    this.#driver.member.setLoad(session_id, load);
  }

  sessionStatus(session_id: string): SessionStatus {
    const sources = this.#registry.table.sourcesOf(session_id);
    const heartbeat = this.#driver.member.lastHeartbeat(session_id);
    if (!heartbeat) return { sources };
    const status: SessionStatus = {
      sources,
      heard_ms_ago: Math.round(monotonicClock.now_ms() - heartbeat.at_ms),
    };
    if (heartbeat.load) status.load = heartbeat.load;
    return status;
  }

  status(): MeshPeerStatus {
    const { member } = this.#driver;
    const { sent, received, undeliverable, rejected } = this.#transport.counters();
    const all: Record<string, number> = { ...rejected };
    for (const [reason, count] of Object.entries(member.rejected)) all[reason] = (all[reason] ?? 0) + count;
    return {
      peer: this.#transport.self,
      addresses: this.#registry.peer?.addresses ?? [],
      members: member.ring.names.length,
      connected: this.#transport.peers().length,
      sent,
      received,
      undeliverable,
      rejected: all,
    };
  }

  /** Tells the others what there is to tell (that its sessions left) and ends. */
  async close(): Promise<void> {
    clearInterval(this.#timer);
    this.#driver.flush();
    await this.#driver.close();
  }

  /** Its addresses, where they changed, into the records of its sessions. */
  #announce(): void {
    const port = this.#transport
      .addresses()
      .flatMap((address) => /\/tcp\/(\d+)$/.exec(address)?.[1] ?? [])[0];
    const direct =
      port === undefined ? [] : this.#options.announce.map((host) => multiaddrOf(host, Number(port)));
    const relayed = this.#transport.addresses().filter((address) => address.endsWith('/p2p-circuit'));
    const addresses = [...direct, ...relayed].slice(0, 16);
    if (this.#registry.peer?.addresses.join() === addresses.join()) return;
    this.#registry.peer = { id: this.#transport.self, addresses };
  }

  /** Greets other sites that are not known yet, and finds a relay again where one was lost. */
  async #lookAround(): Promise<void> {
    if (this.#looking) return;
    this.#looking = true;
    try {
      const relayed = this.#transport.addresses().some((address) => address.endsWith('/p2p-circuit'));
      const { bootstrap, relay } = this.#options;
      await Promise.all([
        ...bootstrap.map((address) => this.#try('bootstrap', address, (at) => this.#driver.dial(at))),
        ...(relayed ? [] : relay).map((address) =>
          this.#try('relay', address, (at) => this.#transport.listenThrough(at)),
        ),
      ]);
      if (this.#registry.peer) this.#announce();
    } finally {
      this.#looking = false;
    }
  }

  /** Does something with a member that the site config names; failures are told once. */
  async #try(kind: string, address: string, work: (multiaddr: string) => Promise<void>): Promise<void> {
    const name = `${kind} ${address}`;
    try {
      await work(memberAddress(address));
      this.#troubles.delete(name);
    } catch (error) {
      if (!this.#troubles.has(name)) this.#options.onTrouble(`${name}: ${(error as Error).message}`);
      this.#troubles.add(name);
    }
  }
}

/** Where peers listen, by their latest records; those that left included, since they may be back. */
class AddressBook {
  readonly #addresses = new Map<PeerName, readonly string[]>();

  constructor({ table }: RendezvousRegistry) {
    for (const { record } of table.entries()) this.#note(record?.value.metadata.peer);
    table.onStep(({ after }) => this.#note(after?.record?.value.metadata.peer));
  }

  addressesOf(peer: PeerName): readonly string[] {
    return this.#addresses.get(peer) ?? [];
  }

  #note(peer: { id: string; addresses: string[] } | undefined): void {
    if (!peer) return;
    this.#addresses.delete(peer.id);
    this.#addresses.set(peer.id, peer.addresses);
    if (this.#addresses.size <= addresses_max) return;
    const [oldest] = this.#addresses.keys();
    this.#addresses.delete(oldest!);
  }
}

/** Peers whose addresses are kept. */
const addresses_max = 50_000;

/** On the first port of the range that is free. @throws Error where none is */
async function startOnFreePort(
  { host, ports: [first, last] }: NonNullable<MeshPeerOptions['listen']>,
  start: (addresses: string[]) => Promise<Libp2pTransport>,
): Promise<Libp2pTransport> {
  for (let port = first; ; port++) {
    try {
      return await start([multiaddrOf(host, port)]);
    } catch (error) {
      if (port >= last) throw error;
    }
  }
}

/** Goes on evenly, whatever is done to the clock of the host. */
const monotonicClock: Clock = {
  now_ms: () => performance.now(),
  at: (at_ms, callback) => {
    const timer = setTimeout(callback, Math.max(0, at_ms - performance.now()));
    timer.unref();
    return () => clearTimeout(timer);
  },
};

/** The multiaddr of `HOST:PORT`. */
function memberAddress(text: string): string {
  const at = text.lastIndexOf(':');
  return multiaddrOf(text.slice(0, at).replace(/^\[|\]$/g, ''), Number(text.slice(at + 1)));
}

function multiaddrOf(host: string, port: number): string {
  const kind = host.includes(':') ? 'ip6' : /^[0-9.]+$/.test(host) ? 'ip4' : 'dns4';
  return `/${kind}/${host}/tcp/${port}`;
}
