import type { PeerName } from './messages.ts';
import type { PeerRing } from './peer-ring.ts';
import type { GossipSettings } from './settings.ts';

interface Watched {
  /** When it was last heard; of one never heard, since when it is watched. */
  heard_ms: number;
  ever: boolean;
  /** Since when it is being probed, and by which number. */
  probed?: { at_ms: number; nonce: number };
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

  /** When `suspects` may have something to say, at the earliest. */
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
    delete watched.probed;
  }

  /** Whether the end of a connection to it is a reason to probe it. */
  isHeard(peer: PeerName): boolean {
    const watched = this.#watched.get(peer);
    return watched?.ever === true && watched.probed === undefined;
  }

  probed(peer: PeerName, nonce: number, now_ms: number): void {
    const watched = this.#watched.get(peer);
    if (watched) watched.probed = { at_ms: now_ms, nonce };
  }

  /** Whether a member was probed by this number. */
  isProbed(peer: PeerName, nonce: number): boolean {
    return this.#watched.get(peer)?.probed?.nonce === nonce;
  }

  /** Members that are silent for so long that they are to be probed, and those that were probed and did not answer. */
  suspects(now_ms: number): { probe: PeerName[]; gone: { peer: PeerName; silent_ms: number }[] } {
    const probe: PeerName[] = [];
    const gone: { peer: PeerName; silent_ms: number }[] = [];
    for (const [peer, watched] of this.#watched) {
      if (!this.#ring.has(peer)) {
        this.#watched.delete(peer);
        continue;
      }
      if (now_ms < this.#dueOf(peer, watched)) continue;
      if (watched.probed === undefined) {
        probe.push(peer);
        continue;
      }
      this.#watched.delete(peer);
      gone.push({ peer, silent_ms: now_ms - watched.heard_ms });
    }
    return { probe, gone };
  }

  /** This process stood still for so long: nobody was silent. */
  forgive(late_ms: number): void {
    for (const watched of this.#watched.values()) {
      watched.heard_ms += late_ms;
      if (watched.probed) watched.probed.at_ms += late_ms;
    }
  }

  #dueOf(peer: PeerName, { heard_ms, ever, probed }: Watched): number {
    const { suspicion_timeout_ms, unheard_ms, probe_timeout_ms, stagger_ms, watchers } = this.#settings;
    if (probed === undefined) return heard_ms + (ever ? suspicion_timeout_ms : unheard_ms);
    const rank = this.#ring.neighbours(peer, watchers).indexOf(this.#self);
    return probed.at_ms + probe_timeout_ms + Math.max(0, rank) * stagger_ms;
  }
}
