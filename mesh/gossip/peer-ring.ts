import { hasLeft } from '../entry.ts';
import type { SessionTable, TableStep } from '../session-table.ts';
import type { PeerName } from './messages.ts';

interface Peer {
  /** Those that have not left. */
  sessions: Set<string>;
  /** Of these, the gateways. */
  gateways: Set<string>;
}

/**
 * The members that have a session that has not left, in the order of their names, as a ring: who watches over whom,
 * and who keeps connections with whom, follows from it alone, so that all who have the same table agree.
 */
export class PeerRing {
  readonly #peers = new Map<PeerName, Peer>();
  /** Ascending. */
  readonly #ring: PeerName[] = [];
  #gateways: PeerName[] | undefined;
  /** Counts changes of the ring. */
  version = 0;

  constructor(table: SessionTable) {
    for (const entry of table.entries()) {
      this.#step({ session_id: entry.session_id, before: undefined, after: entry, source: 'own' });
    }
    table.onStep((step) => this.#step(step));
  }

  get names(): readonly PeerName[] {
    return this.#ring;
  }

  has(peer: PeerName): boolean {
    return this.#peers.has(peer);
  }

  sessionsOf(peer: PeerName): ReadonlySet<string> {
    return this.#peers.get(peer)?.sessions ?? none;
  }

  /** Members that are gateways. */
  get gateways(): readonly PeerName[] {
    this.#gateways ??= this.#ring.filter((name) => this.#peers.get(name)!.gateways.size > 0);
    return this.#gateways;
  }

  /** The next `count` members after this one, without itself; with a negative count those before it. */
  neighbours(peer: PeerName, count: number): PeerName[] {
    const ring = this.#ring;
    const at = lowerBound(ring, peer);
    const there = ring[at] === peer;
    const others = ring.length - (there ? 1 : 0);
    const step = Math.sign(count);
    const found: PeerName[] = [];
    // Without itself on the ring, the one at its place is already the next.
    let index = step > 0 && !there ? at - 1 : at;
    while (found.length < Math.min(Math.abs(count), others)) {
      index = (index + step + ring.length) % ring.length;
      if (ring[index] !== peer) found.push(ring[index]!);
    }
    return found;
  }

  /**
   * Members that this one keeps connections to: its neighbours, and those at half, a quarter, an eighth … of the ring,
   * so that any member is a few steps away (the fingers of Chord, Stoica et al., 2001).
   */
  links(peer: PeerName, neighbours: number): PeerName[] {
    const ring = this.#ring;
    const at = lowerBound(ring, peer);
    const found = new Set([...this.neighbours(peer, neighbours), ...this.neighbours(peer, -neighbours)]);
    for (let distance = ring.length >> 1; distance > neighbours; distance >>= 1) {
      const name = ring[(at + distance) % ring.length]!;
      if (name !== peer) found.add(name);
    }
    return [...found];
  }

  /** Random members but these. @param random 0 to below 1 */
  draw(count: number, random: () => number, except: readonly PeerName[]): PeerName[] {
    const ring = this.#ring;
    const found = new Set<PeerName>();
    for (let tries = 0; found.size < count && tries < 4 * count && ring.length > 1; tries++) {
      const name = ring[Math.floor(random() * ring.length)]!;
      if (!except.includes(name)) found.add(name);
    }
    return [...found];
  }

  #step({ session_id, before, after }: TableStep): void {
    const was = before && !hasLeft(before) ? before.record?.value.metadata : undefined;
    const is = after && !hasLeft(after) ? after.record?.value.metadata : undefined;
    if (was?.peer?.id === is?.peer?.id) return;
    if (was?.peer) this.#remove(was.peer.id, session_id);
    if (is?.peer) this.#add(is.peer.id, session_id, is.role === 'gateway');
  }

  #add(name: PeerName, session_id: string, gateway: boolean): void {
    this.#gateways = undefined;
    const known = this.#peers.get(name);
    if (known) {
      known.sessions.add(session_id);
      if (gateway) known.gateways.add(session_id);
      return;
    }
    this.version++;
    this.#peers.set(name, {
      sessions: new Set([session_id]),
      gateways: new Set(gateway ? [session_id] : []),
    });
    this.#ring.splice(lowerBound(this.#ring, name), 0, name);
  }

  #remove(name: PeerName, session_id: string): void {
    const known = this.#peers.get(name);
    if (known?.gateways.delete(session_id)) this.#gateways = undefined;
    known?.sessions.delete(session_id);
    if (known?.sessions.size !== 0) return;
    this.#gateways = undefined;
    this.version++;
    this.#peers.delete(name);
    this.#ring.splice(lowerBound(this.#ring, name), 1);
  }
}

const none: ReadonlySet<string> = new Set();

function lowerBound(sorted: readonly string[], value: string): number {
  let low = 0;
  let high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle]! < value) low = middle + 1;
    else high = middle;
  }
  return low;
}
