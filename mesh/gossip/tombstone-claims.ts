import type { Entry } from '../entry.ts';
import type { PeerName } from './messages.ts';
import type { GossipSettings } from './settings.ts';

/**
 * Members whose end is claimed and not looked into yet, and claims in all. What is above is told again by push-pulls.
 */
const members_max = 4096;
const claims_max = 8192;
/** Members that were found alive are remembered for this long, so many of them. */
const alive_max = 4096;

export interface TombstoneClaim {
  /** The tombstone; with the record where that is unknown, too. */
  entry: Entry;
  /** It came as an announcement, which goes on to others without this member. */
  announced: boolean;
}

interface Case {
  /** Not before. */
  probe_at_ms: number;
  claims: Map<string, TombstoneClaim>;
  probed_ms: number;
  nonce: number;
}

type ClaimSettings = Pick<
  GossipSettings,
  'claim_probe_timeout_ms' | 'claim_again_ms' | 'claim_burst' | 'claims_per_s'
>;

/**
 * What others say of sessions: that they are gone. It counts for nobody but who finds their member silent himself: one
 * probe for each member, directly and through others, whoever said so and however often. Otherwise one member that says
 * it of all could end the mesh.
 */
export class TombstoneClaims {
  readonly #settings: ClaimSettings;
  /** Members to be probed, and those that are probed, in this order. */
  readonly #waiting = new Map<PeerName, Case>();
  readonly #probed = new Map<PeerName, Case>();
  readonly #alive_ms = new Map<PeerName, number>();
  #claims = 0;
  #tokens: number;
  #refilled_ms: number;
  #probe_at_ms = Number.POSITIVE_INFINITY;

  constructor(settings: ClaimSettings, now_ms: number) {
    this.#settings = settings;
    this.#tokens = settings.claim_burst;
    this.#refilled_ms = now_ms;
  }

  /** @returns whether it is new */
  take(peer: PeerName, claim: TombstoneClaim, now_ms: number): boolean {
    let open = this.#probed.get(peer) ?? this.#waiting.get(peer);
    const { session_id, tombstone } = claim.entry;
    if (open?.claims.get(session_id)?.entry.tombstone?.fingerprint === tombstone?.fingerprint && open)
      return false;
    if (this.#claims >= claims_max) return false;
    if (!open) {
      if (this.#waiting.size >= members_max) return false;
      const again_ms = (this.#alive_ms.get(peer) ?? Number.NEGATIVE_INFINITY) + this.#settings.claim_again_ms;
      const probe_at_ms = Math.max(now_ms, again_ms);
      open = { probe_at_ms, claims: new Map(), probed_ms: Number.NaN, nonce: -1 };
      this.#waiting.set(peer, open);
      this.#probe_at_ms = Math.min(this.#probe_at_ms, probe_at_ms);
    }
    if (!open.claims.has(session_id)) this.#claims++;
    open.claims.set(session_id, claim);
    return true;
  }

  /** When `tick` has something to do, at the earliest. */
  get due_ms(): number {
    const [first] = this.#probed.values();
    return Math.min(
      this.#probe_at_ms,
      first ? first.probed_ms + this.#settings.claim_probe_timeout_ms : Number.POSITIVE_INFINITY,
    );
  }

  /** @returns claims about members that did not answer: they are right */
  tick(now_ms: number, probe: (peer: PeerName) => number): TombstoneClaim[] {
    const right: TombstoneClaim[] = [];
    for (const [peer, { probed_ms, claims }] of this.#probed) {
      if (now_ms < probed_ms + this.#settings.claim_probe_timeout_ms) break;
      this.#close(this.#probed, peer);
      right.push(...claims.values());
    }
    if (now_ms >= this.#probe_at_ms) this.#probeDue(now_ms, probe);
    return right;
  }

  /** A member was heard. @returns what was claimed of it, which is wrong */
  alive(peer: PeerName, now_ms: number): TombstoneClaim[] {
    const on = this.#probed.has(peer) ? this.#probed : this.#waiting;
    const open = on.get(peer);
    if (!open) return [];
    this.#close(on, peer);
    this.#alive_ms.delete(peer);
    this.#alive_ms.set(peer, now_ms);
    const [oldest] = this.#alive_ms.keys();
    if (this.#alive_ms.size > alive_max) this.#alive_ms.delete(oldest!);
    return [...open.claims.values()];
  }

  /** Whether a member was probed by this number. */
  isProbed(peer: PeerName, nonce: number): boolean {
    return this.#probed.get(peer)?.nonce === nonce;
  }

  /** This process stood still for so long: nobody was silent. */
  forgive(late_ms: number): void {
    for (const open of this.#probed.values()) open.probed_ms += late_ms;
  }

  #probeDue(now_ms: number, probe: (peer: PeerName) => number): void {
    const { claim_burst, claims_per_s } = this.#settings;
    this.#tokens = Math.min(claim_burst, this.#tokens + ((now_ms - this.#refilled_ms) / 1000) * claims_per_s);
    this.#refilled_ms = now_ms;
    this.#probe_at_ms = Number.POSITIVE_INFINITY;
    for (const [peer, open] of this.#waiting) {
      const at_ms =
        this.#tokens >= 1 ? open.probe_at_ms : Math.max(open.probe_at_ms, now_ms + 1000 / claims_per_s);
      if (at_ms > now_ms) {
        this.#probe_at_ms = Math.min(this.#probe_at_ms, at_ms);
        continue;
      }
      this.#tokens--;
      this.#waiting.delete(peer);
      open.probed_ms = now_ms;
      open.nonce = probe(peer);
      this.#probed.set(peer, open);
    }
  }

  #close(on: Map<PeerName, Case>, peer: PeerName): void {
    this.#claims -= on.get(peer)!.claims.size;
    on.delete(peer);
  }
}
