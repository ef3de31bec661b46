import type { Clock, MeshTransport, TransportCounters, TransportReceiver } from '../transport.ts';
import type { GossipMessage, PeerName } from './messages.ts';
import { TimerQueue } from './timer-queue.ts';

export interface NetworkOptions {
  seed: number;
  /** Share of messages that are lost, each way. */
  loss: number;
  /** One way, drawn evenly between these, ms. */
  delay_ms: readonly [least: number, most: number];
}

/** Links along which a member passes an announcement on: gossipsub's D. */
const degree = 11;

/** An announcement under way. */
interface Announcement {
  message: GossipMessage;
  /** Members that have it. */
  seen: Set<PeerName>;
  /** Steps from who said it, at the longest so far. */
  hops: number;
}

/**
 * A network that exists only here, by seed: delay, loss, partitions, members that fall silent, clocks that are wrong.
 * Its transports spread announcements as gossipsub does: along links, each member to a few on first sight.
 */
export class MemoryNetwork {
  now_ms = 0;
  /** Messages sent, copies of announcements included. */
  messages = 0;
  /** Steps that the announcement took that took the most. */
  hops_max = 0;
  readonly random: () => number;
  readonly #options: NetworkOptions;
  readonly #hosts = new Map<PeerName, Host>();
  readonly #queue = new TimerQueue();

  constructor(options: NetworkOptions) {
    this.#options = options;
    this.random = mulberry32(options.seed);
  }

  /** A new host. Its address, for `dial`, is its name. */
  host(name: PeerName, clock_error_ms = 0): Host {
    const host = new Host(this, name, onGrid(clock_error_ms));
    this.#hosts.set(name, host);
    return host;
  }

  find(name: PeerName): Host | undefined {
    return this.#hosts.get(name);
  }

  /** Runs for so long. */
  run(duration_ms: number): void {
    const end_ms = this.now_ms + duration_ms;
    for (;;) {
      const at_ms = this.#queue.next_ms;
      if (at_ms > end_ms) break;
      this.now_ms = at_ms;
      this.#queue.pop()();
    }
    this.now_ms = end_ms;
  }

  schedule(at_ms: number, callback: () => void): void {
    this.#queue.push(Math.max(this.now_ms, onGrid(at_ms)), callback);
  }

  deliver(from: Host, to: PeerName, message: GossipMessage): void {
    const receiver = this.#way(from, to);
    if (!receiver) return;
    this.schedule(this.now_ms + this.#delay(), () => {
      if (!receiver.silent) receiver.receiver?.message(from.self, message);
    });
  }

  announce(from: Host, message: GossipMessage): void {
    const announcement = { message, seen: new Set([from.self]), hops: 0 };
    // Its own words gossipsub tells to all it is linked with (flood publish).
    for (const link of from.links()) this.#pass(from, link, announcement, 1);
  }

  #pass(from: Host, to: PeerName, announcement: Announcement, hops: number): void {
    // A copy for somebody who has it by now would be dropped there; the message counts all the same.
    const receiver = this.#way(from, to);
    if (!receiver || announcement.seen.has(to)) return;
    this.schedule(this.now_ms + this.#delay(), () => {
      if (receiver.silent || announcement.seen.has(to)) return;
      announcement.seen.add(to);
      if (!receiver.receiver?.announcement(from.self, announcement.message)) return;
      this.hops_max = Math.max(this.hops_max, hops);
      const links = receiver.links().filter((link) => link !== from.self);
      for (let count = 0; count < degree && links.length > 0; count++) {
        const [link] = links.splice(Math.floor(this.random() * links.length), 1);
        this.#pass(receiver, link!, announcement, hops + 1);
      }
    });
  }

  /** The receiver, where the message arrives. */
  #way(from: Host, to: PeerName): Host | undefined {
    this.messages++;
    const receiver = this.#hosts.get(to);
    if (!receiver || this.random() < this.#options.loss) return undefined;
    return receiver.part === from.part ? receiver : undefined;
  }

  #delay(): number {
    const [least, most] = this.#options.delay_ms;
    return least + this.random() * (most - least);
  }
}

/** One member's place in the network: its transport and its clock. */
export class Host implements MeshTransport, Clock {
  readonly self: PeerName;
  receiver: TransportReceiver | undefined;
  /** Told nothing and says nothing. */
  silent = false;
  /** Part of the network it is in; parts do not reach each other. */
  part = 0;
  readonly #network: MemoryNetwork;
  readonly #clock_error_ms: number;
  #kept: readonly PeerName[] = [];
  /** Members that keep a connection to this one. */
  readonly keptBy = new Set<PeerName>();
  #sent = 0;
  #received = 0;

  constructor(network: MemoryNetwork, name: PeerName, clockError_ms: number) {
    this.#network = network;
    this.self = name;
    this.#clock_error_ms = clockError_ms;
  }

  now_ms(): number {
    return this.#network.now_ms + this.#clock_error_ms;
  }

  at(at_ms: number, callback: () => void): () => void {
    let due = true;
    this.#network.schedule(at_ms - this.#clock_error_ms, () => {
      if (due && !this.silent) callback();
    });
    return () => {
      due = false;
    };
  }

  send(to: PeerName, message: GossipMessage): void {
    this.#sent++;
    this.#network.deliver(this, to, message);
  }

  announce(message: GossipMessage): void {
    this.#sent++;
    this.#network.announce(this, message);
  }

  keep(peers: readonly PeerName[]): void {
    for (const peer of this.#kept) this.#network.find(peer)?.keptBy.delete(this.self);
    for (const peer of peers) this.#network.find(peer)?.keptBy.add(this.self);
    this.#kept = peers;
  }

  links(): PeerName[] {
    return [...new Set([...this.#kept, ...this.keptBy])];
  }

  dial(address: string): Promise<PeerName> {
    return this.#network.find(address)
      ? Promise.resolve(address)
      : Promise.reject(new Error(`nobody is at ${address}`));
  }

  peers(): PeerName[] {
    return this.links();
  }

  counters(): TransportCounters {
    return { sent: this.#sent, received: this.#received, undeliverable: 0, rejected: {} };
  }

  listen(receiver: TransportReceiver): void {
    this.receiver = {
      ...receiver,
      message: (from, message) => {
        this.#received++;
        receiver.message(from, message);
      },
    };
  }

  close(): Promise<void> {
    this.silent = true;
    return Promise.resolve();
  }
}

/**
 * The next 1024th of a millisecond: sums of such times are exact, so that nobody is woken a rounding error too early.
 */
function onGrid(ms: number): number {
  return Math.ceil(ms * 1024) / 1024;
}

/** Same numbers from the same seed (Tommy Ettinger's mulberry32). */
function mulberry32(seed: number): () => number {
  let state = seed | 0;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}
