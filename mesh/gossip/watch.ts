import type { PeerName } from './messages.ts';
import type { PeerRing } from './peer-ring.ts';
import type { GossipSettings } from './settings.ts';

interface Watched {
  /** When it was last heard; of one never heard, since when it is watched. */
  heard_ms: number;
  ever: boolean;
  /** Since when it is being asked for, and by which number. */
  asked?: { at_ms: number; nonce: number };
}

/** Members that one member watches over: those before it on the ring. */
export class Watch {
  readonly #ring: PeerRing;
  readonly #self: PeerName;
  readonly #settings: GossipSettings;
  readonly #watched = new Map<PeerName, Watched>();

  constructor(ring: PeerRing, self: PeerName, settings: GossipSettings) {
    this.#ring = ring;
    this.#self = self;
    this.#settings = settings;
  }

  /** As the ring is now; of new ones, silence counts from now on. */
  update(now_ms: number): void {
    const mine = this.#ring.neighbours(this.#self, -this.#settings.watchers);
    for (const peer of this.#watched.keys()) if (!mine.includes(peer)) this.#watched.delete(peer);
    for (const peer of mine)
      if (!this.#watched.has(peer)) this.#watched.set(peer, { heard_ms: now_ms, ever: false });
  }

  /** When `silent` may have something to say, at the earliest. */
  get due_ms(): number {
    let due_ms = Number.POSITIVE_INFINITY;
    for (const [peer, watched] of this.#watched) due_ms = Math.min(due_ms, this.#dueOf(peer, watched));
    return due_ms;
  }

  seen(peer: PeerName, now_ms: number): void {
    const watched = this.#watched.get(peer);
    if (!watched) return;
    watched.heard_ms = now_ms;
    watched.ever = true;
    delete watched.asked;
  }

  /** Whether the end of a connection to it is a reason to ask. */
  isHeard(peer: PeerName): boolean {
    const watched = this.#watched.get(peer);
    return watched?.ever === true && watched.asked === undefined;
  }

  asked(peer: PeerName, nonce: number, now_ms: number): void {
    const watched = this.#watched.get(peer);
    if (watched) watched.asked = { at_ms: now_ms, nonce };
  }

  /** Whether a member was asked by this number. */
  isAsked(peer: PeerName, nonce: number): boolean {
    return this.#watched.get(peer)?.asked?.nonce === nonce;
  }

  /** Members that are silent for so long that they are to be asked, and those that were asked and did not answer. */
  silent(now_ms: number): { ask: PeerName[]; gone: { peer: PeerName; silent_ms: number }[] } {
    const ask: PeerName[] = [];
    const gone: { peer: PeerName; silent_ms: number }[] = [];
    for (const [peer, watched] of this.#watched) {
      if (!this.#ring.has(peer)) {
        this.#watched.delete(peer);
        continue;
      }
      if (now_ms < this.#dueOf(peer, watched)) continue;
      if (watched.asked === undefined) {
        ask.push(peer);
        continue;
      }
      this.#watched.delete(peer);
      gone.push({ peer, silent_ms: now_ms - watched.heard_ms });
    }
    return { ask, gone };
  }

  /** This process stood still for so long: nobody was silent. */
  forgive(late_ms: number): void {
    for (const watched of this.#watched.values()) {
      watched.heard_ms += late_ms;
      if (watched.asked) watched.asked.at_ms += late_ms;
    }
  }

  #dueOf(peer: PeerName, { heard_ms, ever, asked }: Watched): number {
    const { suspicion_timeout_ms, unheard_ms, probe_timeout_ms, stagger_ms, watchers } = this.#settings;
    if (asked === undefined) return heard_ms + (ever ? suspicion_timeout_ms : unheard_ms);
    const rank = this.#ring.neighbours(peer, watchers).indexOf(this.#self);
    return asked.at_ms + probe_timeout_ms + Math.max(0, rank) * stagger_ms;
  }
}
