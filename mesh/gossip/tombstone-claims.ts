/**
 * What others say of sessions: that they are gone. It counts for nobody but who finds their member silent himself: one
 * probe for each member, directly and through others, whoever said so and however often. Otherwise one member that says
 * it of all could end the mesh.
 */
import type { Entry } from '../entry.ts';
import type { PeerName } from './messages.ts';
import type { GossipSettings } from './settings.ts';

/** Members whose end is claimed and not looked into yet, and claims in all. What is above is told again by comparisons. */
const members_max = 4096;
const claims_max = 8192;
/** Members that were found alive are remembered for this long, so many of them. */
const alive_max = 4096;

export interface TombstoneClaim {
  /** The departure; with the record where that is unknown, too. */
  entry: Entry;
  /** It came as an announcement, which goes on to others without this member. */
  announced: boolean;
}

interface Case {
  /** Not before. */
  ask_at_ms: number;
  claims: Map<string, TombstoneClaim>;
  asked_ms: number;
  nonce: number;
}

type ClaimSettings = Pick<
  GossipSettings,
  'claim_check_ms' | 'claim_again_ms' | 'claim_burst' | 'claims_per_s'
>;

export class TombstoneClaims {
  readonly #settings: ClaimSettings;
  /** Members to be asked, and those that are asked, in this order. */
  readonly #waiting = new Map<PeerName, Case>();
  readonly #asked = new Map<PeerName, Case>();
  readonly #alive_ms = new Map<PeerName, number>();
  #claims = 0;
  #tokens: number;
  #refilled_ms: number;
  #ask_at_ms = Number.POSITIVE_INFINITY;

  constructor(settings: ClaimSettings, now_ms: number) {
    this.#settings = settings;
    this.#tokens = settings.claim_burst;
    this.#refilled_ms = now_ms;
  }

  /** @returns whether it is new */
  take(peer: PeerName, claim: TombstoneClaim, now_ms: number): boolean {
    let open = this.#asked.get(peer) ?? this.#waiting.get(peer);
    const { session_id, departure } = claim.entry;
    if (open?.claims.get(session_id)?.entry.departure?.fingerprint === departure?.fingerprint && open)
      return false;
    if (this.#claims >= claims_max) return false;
    if (!open) {
      if (this.#waiting.size >= members_max) return false;
      const again_ms = (this.#alive_ms.get(peer) ?? Number.NEGATIVE_INFINITY) + this.#settings.claim_again_ms;
      const ask_at_ms = Math.max(now_ms, again_ms);
      open = { ask_at_ms, claims: new Map(), asked_ms: Number.NaN, nonce: -1 };
      this.#waiting.set(peer, open);
      this.#ask_at_ms = Math.min(this.#ask_at_ms, ask_at_ms);
    }
    if (!open.claims.has(session_id)) this.#claims++;
    open.claims.set(session_id, claim);
    return true;
  }

  /** When `tick` has something to do, at the earliest. */
  get due_ms(): number {
    const [first] = this.#asked.values();
    return Math.min(
      this.#ask_at_ms,
      first ? first.asked_ms + this.#settings.claim_check_ms : Number.POSITIVE_INFINITY,
    );
  }

  /** @returns claims about members that did not answer: they are right */
  tick(now_ms: number, ask: (peer: PeerName) => number): TombstoneClaim[] {
    const right: TombstoneClaim[] = [];
    for (const [peer, { asked_ms, claims }] of this.#asked) {
      if (now_ms < asked_ms + this.#settings.claim_check_ms) break;
      this.#close(this.#asked, peer);
      right.push(...claims.values());
    }
    if (now_ms >= this.#ask_at_ms) this.#askDue(now_ms, ask);
    return right;
  }

  /** A member gave a sign of life. @returns what was claimed of it, which is wrong */
  alive(peer: PeerName, now_ms: number): TombstoneClaim[] {
    const on = this.#asked.has(peer) ? this.#asked : this.#waiting;
    const open = on.get(peer);
    if (!open) return [];
    this.#close(on, peer);
    this.#alive_ms.delete(peer);
    this.#alive_ms.set(peer, now_ms);
    const [oldest] = this.#alive_ms.keys();
    if (this.#alive_ms.size > alive_max) this.#alive_ms.delete(oldest!);
    return [...open.claims.values()];
  }

  /** Whether a member was asked by this number. */
  isAsked(peer: PeerName, nonce: number): boolean {
    return this.#asked.get(peer)?.nonce === nonce;
  }

  /** This process stood still for so long: nobody was silent. */
  forgive(late_ms: number): void {
    for (const open of this.#asked.values()) open.asked_ms += late_ms;
  }

  #askDue(now_ms: number, ask: (peer: PeerName) => number): void {
    const { claim_burst, claims_per_s } = this.#settings;
    this.#tokens = Math.min(claim_burst, this.#tokens + ((now_ms - this.#refilled_ms) / 1000) * claims_per_s);
    this.#refilled_ms = now_ms;
    this.#ask_at_ms = Number.POSITIVE_INFINITY;
    for (const [peer, open] of this.#waiting) {
      const at_ms =
        this.#tokens >= 1 ? open.ask_at_ms : Math.max(open.ask_at_ms, now_ms + 1000 / claims_per_s);
      if (at_ms > now_ms) {
        this.#ask_at_ms = Math.min(this.#ask_at_ms, at_ms);
        continue;
      }
      this.#tokens--;
      this.#waiting.delete(peer);
      open.asked_ms = now_ms;
      open.nonce = ask(peer);
      this.#asked.set(peer, open);
    }
  }

  #close(on: Map<PeerName, Case>, peer: PeerName): void {
    this.#claims -= on.get(peer)!.claims.size;
    on.delete(peer);
  }
}
