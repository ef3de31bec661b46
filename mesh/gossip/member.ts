import { ownPause_ms } from '../../host/own-pause.ts';
import { type Entry, hasLeft, isGossiped, isLater, markOf, type Signed } from '../entry.ts';
import type { RecordMark, Tombstone } from '../record-codec.ts';
import type { MergeOutcome, SessionTable } from '../session-table.ts';
import { batches } from './batches.ts';
import { LeftMembers } from './left-members.ts';
import { everyone, type GossipMessage, type Outgoing, type PeerName, type SessionLoad } from './messages.ts';
import { PeerRing } from './peer-ring.ts';
import { differingBuckets, marksOf, pushPullDifference } from './push-pull.ts';
import { RelayedProbes } from './relayed-probes.ts';
import { SenderRates } from './sender-rates.ts';
import type { GossipSettings } from './settings.ts';
import { type TombstoneClaim, TombstoneClaims } from './tombstone-claims.ts';
import { Watch } from './watch.ts';

export interface GossipMemberOptions {
  self: PeerName;
  table: SessionTable;
  /** The entry that says of a session that it left, with the evidence, signed by this member. */
  sealTombstone: (session_id: string, evidence: string, seen: RecordMark | undefined) => Entry;
  /** An own session is said to be gone as far as this record: a later one is to show that it lives. */
  refute: (session_id: string, seen: RecordMark) => void;
  settings: GossipSettings;
  /** Any clock that goes on evenly; members' clocks need not agree. */
  now_ms: () => number;
  /** 0 to below 1. */
  random: () => number;
}

/**
 * `replayed`: of a session that is over and was compacted; `not_its_own`: a heartbeat for another's session;
 * `unproven`: that a session is gone, of one whose member lives.
 */
export type GossipRejection = 'oversized' | 'flood' | 'replayed' | 'not_its_own' | 'unproven';

interface Heartbeat {
  at_ms: number;
  load?: SessionLoad;
}

/**
 * For how long after a pause of its own the word of others that it was gone counts. Lower: they have to say so at once.
 */
const away_ms = 10_000;

/**
 * One member of the gossip as a state machine: messages and the passing of time in, messages out. It knows no network,
 * no clock and no keys, so that a thousand of them run in one process, by seed (`simulation.ts`).
 *
 * News is told to all at once (the transport spreads it) and what that misses is found by push-pulls. Each member is
 * watched over by the next few on the ring, to whom it sends heartbeats; one that falls silent is probed directly and
 * through others before a tombstone says that its sessions have left. Who is told so probes for himself before it
 * counts, and who lives shows it by a later record. After SWIM (Das et al., 2002), with fixed watchers instead of
 * random ones, so that silence is seen in a bounded time.
 */
export class GossipMember {
  readonly ring: PeerRing;
  readonly rejected: Record<GossipRejection, number> = {
    oversized: 0,
    flood: 0,
    replayed: 0,
    not_its_own: 0,
    unproven: 0,
  };
  readonly #options: GossipMemberOptions;
  readonly #table: SessionTable;
  readonly #self: PeerName;
  /** Sessions of which there is something to tell. */
  readonly #fresh = new Set<string>();
  #broadcast_at_ms = Number.POSITIVE_INFINITY;
  /** What comes by an announcement to all is passed on by who carries it. */
  #announced = false;
  readonly #watch: Watch;
  readonly #left = new LeftMembers();
  readonly #rates: SenderRates;
  readonly #relayed = new RelayedProbes();
  readonly #claims: TombstoneClaims;
  /** Own sessions that were shown to live, and when. */
  readonly #refuted_ms = new Map<string, number>();
  /** Until then it takes the word of others that it was gone: it stood still for so long that they had to think so. */
  #away_until_ms = Number.NEGATIVE_INFINITY;
  readonly #heartbeats = new Map<string, Heartbeat>();
  readonly #loads = new Map<string, SessionLoad>();
  /** Greeted last: greeted again while nobody else is known. */
  #contact: PeerName | undefined;
  #nonce = 0;
  #heartbeat_at_ms: number;
  #load_at_ms: number;
  #push_pull_at_ms: number;

  constructor(options: GossipMemberOptions) {
    this.#options = options;
    this.#table = options.table;
    this.#self = options.self;
    const now_ms = options.now_ms();
    const { heartbeat_interval_ms, load_ms, push_pull_interval_ms } = options.settings;
    this.#heartbeat_at_ms = now_ms + options.random() * heartbeat_interval_ms;
    this.#load_at_ms = now_ms + options.random() * load_ms;
    this.#push_pull_at_ms = now_ms + options.random() * push_pull_interval_ms;
    this.ring = new PeerRing(options.table);
    this.#watch = new Watch(this.ring, options.self, options.settings);
    this.#rates = new SenderRates(options.settings);
    this.#claims = new TombstoneClaims(options.settings, now_ms);
    options.table.onStep(({ session_id, before, after }) => {
      if (!after) {
        this.#heartbeats.delete(session_id);
        this.#loads.delete(session_id);
        this.#fresh.delete(session_id);
        this.#refuted_ms.delete(session_id);
        return;
      }
      const peer = after.record?.value.metadata.peer?.id;
      if (peer === undefined) return; // its folder's business alone
      // Taken for gone while it lives: it was cut off, and has missed what happened meanwhile.
      if (peer === this.#self && hasLeft(after) && !(before && hasLeft(before))) this.#pushPullSoon();
      if (this.ring.has(peer)) this.#left.delete(peer);
      else if (peer !== this.#self) this.#left.add(peer);
      // A second tombstone adds nothing that anybody needs to know soon.
      if (before && before.record === after.record && hasLeft(before)) return;
      if (this.#announced) return;
      if (this.#fresh.size === 0)
        this.#broadcast_at_ms = options.now_ms() + options.settings.broadcast_batch_ms;
      this.#fresh.add(session_id);
    });
  }

  /** Members to keep connections to. */
  links(): PeerName[] {
    return this.ring.links(this.#self, this.#options.settings.watchers);
  }

  /** What the heartbeats of an own session carry. */
  setLoad(session_id: string, load: SessionLoad): void {
    this.#loads.set(session_id, load);
  }

  /** The last heartbeat of a session that came here; only watchers and gateways get them. */
  lastHeartbeat(session_id: string): { at_ms: number; load?: SessionLoad } | undefined {
    return this.#heartbeats.get(session_id);
  }

  /** First contact: a push-pull with a member that is known by name, and tell it of the own sessions. */
  greet(peer: PeerName): Outgoing[] {
    this.#contact = peer;
    const own = [...this.ring.sessionsOf(this.#self)].flatMap((id) => this.#table.entry(id) ?? []);
    return [{ to: peer, message: this.#sums() }, ...this.#batches(peer, own)];
  }

  /** A connection to a member broke: it may have died, so it is probed now. */
  lost(peer: PeerName): Outgoing[] {
    const out: Outgoing[] = [];
    if (this.#watch.isHeard(peer)) this.#probeWatched(peer, this.#options.now_ms(), out);
    return out;
  }

  /** When `tick` has something to do, at the earliest. */
  nextTick_ms(): number {
    return Math.min(
      this.#heartbeat_at_ms,
      this.#push_pull_at_ms,
      this.#broadcast_at_ms,
      this.#claims.due_ms,
      this.#watch.due_ms,
    );
  }

  /** What is to be said now. */
  tick(): Outgoing[] {
    const { settings, random } = this.#options;
    const now_ms = this.#options.now_ms();
    this.#noticeOwnPause(now_ms);
    this.#forgiveOwnPause(now_ms);
    const out: Outgoing[] = [];
    if (now_ms >= this.#heartbeat_at_ms) {
      this.#heartbeat_at_ms = now_ms + settings.heartbeat_interval_ms;
      this.#sendHeartbeats(now_ms, out);
      this.#watch.update(now_ms);
      this.#relayed.forget(now_ms - settings.push_pull_interval_ms);
    }
    this.#probeSuspects(now_ms, out);
    this.#acceptClaims(this.#claims.tick(now_ms, (peer) => this.#probe(peer, out)));
    if (now_ms >= this.#broadcast_at_ms) this.#broadcast(out);
    if (now_ms >= this.#push_pull_at_ms) {
      this.#push_pull_at_ms = now_ms + settings.push_pull_interval_ms * (0.5 + random());
      const to = this.#pushPullPeer();
      if (to !== undefined) out.push({ to, message: this.#sums() });
    }
    return out;
  }

  /** A message that was announced to all. @returns whether it holds anything new, and so is worth passing on */
  hear(from: PeerName, message: GossipMessage): boolean {
    const now_ms = this.#options.now_ms();
    if (message.kind !== 'news' || this.#floods(from, now_ms, 'announcements')) return false;
    if (this.#isOversized(message)) return false;
    this.#noticeOwnPause(now_ms);
    this.#announced = true;
    try {
      return message.entries.filter((entry) => this.#take(entry, now_ms)).length > 0;
    } finally {
      this.#announced = false;
      this.#seen(from, now_ms);
    }
  }

  /** A message to this member. */
  receive(from: PeerName, message: GossipMessage): Outgoing[] {
    const now_ms = this.#options.now_ms();
    if (this.#floods(from, now_ms, 'messages')) return [];
    this.#noticeOwnPause(now_ms);
    return [...this.#seen(from, now_ms), ...this.#answer(from, message, now_ms)];
  }

  #answer(from: PeerName, message: GossipMessage, now_ms: number): Outgoing[] {
    switch (message.kind) {
      case 'beat':
        return this.#heardHeartbeat(from, message.sessions, now_ms);
      case 'news':
        if (!this.#isOversized(message)) for (const entry of message.entries) this.#take(entry, now_ms);
        return [];
      case 'probe':
        return [{ to: from, message: { kind: 'alive', nonce: message.nonce } }];
      case 'probe_for': {
        const nonce = ++this.#nonce;
        const question = { to: from, nonce: message.nonce, peer: message.peer, at_ms: now_ms };
        if (!this.#relayed.ask(nonce, question)) return [];
        return [{ to: message.peer, message: { kind: 'probe', nonce } }];
      }
      case 'alive': {
        const relayed = this.#relayed.answered(message.nonce, from);
        if (!relayed) return [];
        const { to, nonce, peer } = relayed;
        return [{ to, message: { kind: 'alive_for', nonce, peer } }];
      }
      case 'alive_for':
        if (
          this.#watch.isProbed(message.peer, message.nonce) ||
          this.#claims.isProbed(message.peer, message.nonce)
        ) {
          return this.#seen(message.peer, now_ms);
        }
        return [];
      case 'sums':
        return this.#compareSums(from, message.sums);
      case 'marks':
        return this.#compareMarks(from, message);
      case 'want': {
        const entries = message.session_ids.flatMap((id) => this.#table.entry(id) ?? []);
        return this.#batches(from, entries.filter(isGossiped));
      }
    }
  }

  /** What is still to be told to all, without waiting for more of it. */
  flush(): Outgoing[] {
    const out: Outgoing[] = [];
    this.#broadcast(out);
    return out;
  }

  // --- heartbeats ---------------------------------------------------------------------------------------------

  #sendHeartbeats(now_ms: number, out: Outgoing[]): void {
    const { watchers, load_ms } = this.#options.settings;
    const sessions = [...this.ring.sessionsOf(this.#self)].map((session_id) => {
      const load = this.#loads.get(session_id);
      return load === undefined ? { session_id } : { session_id, load };
    });
    if (sessions.length === 0) return;
    const to = new Set(this.ring.neighbours(this.#self, watchers));
    if (now_ms >= this.#load_at_ms) {
      this.#load_at_ms = now_ms + load_ms;
      for (const gateway of this.ring.gateways) if (gateway !== this.#self) to.add(gateway);
    }
    const message: GossipMessage = { kind: 'beat', sessions };
    for (const peer of to) out.push({ to: peer, message });
  }

  #heardHeartbeat(
    from: PeerName,
    sessions: readonly { session_id: string; load?: SessionLoad }[],
    now_ms: number,
  ): Outgoing[] {
    const want: string[] = [];
    const tell: Entry[] = [];
    for (const { session_id, load } of sessions) {
      const entry = this.#table.entry(session_id);
      const peer = entry?.record?.value.metadata.peer?.id;
      if (peer === undefined) {
        // It knows this member, and this one not it. What said that a session is over may be forgotten: it is said
        // again.
        if (!this.#table.isForgotten(session_id)) want.push(session_id);
        else tell.push(this.#tombstoneOf(session_id, 'it was over, and had been compacted'));
      } else if (peer !== from) this.rejected.not_its_own++;
      // It lives and does not know what is said of it.
      else if (hasLeft(entry!)) tell.push(entry!);
      else this.#heartbeats.set(session_id, load === undefined ? { at_ms: now_ms } : { at_ms: now_ms, load });
    }
    const out = this.#batches(from, tell);
    if (want.length > 0) out.push({ to: from, message: { kind: 'want', session_ids: want } });
    return out;
  }

  /** @returns what it is to be told: that others take it for gone, where they did not say so to all */
  #seen(peer: PeerName, now_ms: number): Outgoing[] {
    this.#watch.seen(peer, now_ms);
    const tell: Entry[] = [];
    for (const { entry, announced } of this.#claims.alive(peer, now_ms)) {
      const { session_id, record, tombstone } = entry;
      if (record) this.#merge({ session_id, record });
      const newest = this.#table.entry(session_id)?.record?.value;
      const { seen } = tombstone!.value;
      if (newest && seen && isLater(newest, seen)) continue; // it knows, and has shown that it lives
      this.rejected.unproven++;
      if (!announced) tell.push({ session_id, tombstone: tombstone! });
    }
    return this.#batches(peer, tell);
  }

  #probeSuspects(now_ms: number, out: Outgoing[]): void {
    const { probe, gone } = this.#watch.suspects(now_ms);
    for (const peer of probe) this.#probeWatched(peer, now_ms, out);
    for (const { peer, silent_ms } of gone) {
      const evidence = `silent for ${(silent_ms / 1000).toFixed(1)} s; neither it nor anyone asked about it answered`;
      for (const id of [...this.ring.sessionsOf(peer)]) {
        this.#table.merge(this.#tombstoneOf(id, evidence), 'own');
      }
    }
  }

  #probeWatched(peer: PeerName, now_ms: number, out: Outgoing[]): void {
    this.#watch.probed(peer, this.#probe(peer, out), now_ms);
  }

  /** Probes a member, directly and through others. @returns the number of the probe */
  #probe(peer: PeerName, out: Outgoing[]): number {
    const nonce = ++this.#nonce;
    out.push({ to: peer, message: { kind: 'probe', nonce } });
    const { random, settings } = this.#options;
    for (const to of this.ring.draw(settings.indirect_probes, random, [peer, this.#self])) {
      out.push({ to, message: { kind: 'probe_for', nonce, peer } });
    }
    return nonce;
  }

  #tombstoneOf(session_id: string, evidence: string): Entry {
    const record = this.#table.entry(session_id)?.record?.value;
    const seen = record ? markOf(record) : this.#table.lastMark(session_id);
    return this.#options.sealTombstone(session_id, evidence, seen);
  }

  /** Where this process itself stood still, others were not silent: nobody listened. */
  #forgiveOwnPause(now_ms: number): void {
    const late_ms = ownPause_ms(this.nextTick_ms(), now_ms, this.#options.settings.heartbeat_interval_ms);
    if (late_ms === 0) return;
    this.#claims.forgive(late_ms);
    this.#watch.forgive(late_ms);
  }

  /** Who stood still until others had to take it for gone is not surprised to hear it. */
  #noticeOwnPause(now_ms: number): void {
    const { suspicion_timeout_ms, probe_timeout_ms, heartbeat_interval_ms } = this.#options.settings;
    // Its last heartbeat, and its next, were up to one interval away from where it stopped.
    if (now_ms - this.nextTick_ms() >= suspicion_timeout_ms + probe_timeout_ms - 2 * heartbeat_interval_ms)
      this.#away_until_ms = now_ms + away_ms;
  }

  // --- news --------------------------------------------------------------------------------------------------

  /** @returns whether it says anything new */
  #take(entry: Entry, now_ms: number): boolean {
    const { session_id, record, tombstone } = entry;
    if (!tombstone || record?.value.lifecycle === 'LEFT') return this.#merge(entry) === 'news';
    const isKnown = this.#table.entry(session_id) !== undefined || this.#table.isForgotten(session_id);
    // With the record first: it may be later than what is known, and show that the session lives.
    const outcome = record && isKnown ? this.#merge({ session_id, record }) : undefined;
    if (outcome === 'forgotten') return false;
    return this.#hearTombstone(entry, tombstone, now_ms) || outcome === 'news';
  }

  /** Somebody says that a session is gone. @returns whether it is worth passing on */
  #hearTombstone(entry: Entry, tombstone: Signed<Tombstone>, now_ms: number): boolean {
    const { session_id } = entry;
    const known = this.#table.entry(session_id);
    const newest = (known ?? entry).record?.value;
    const peer = newest?.metadata.peer?.id;
    if (!newest || peer === undefined) return false; // unknown, or its folder's business alone
    const { seen } = tombstone.value;
    if (seen && isLater(newest, seen)) return false;
    if (seen && isLater(seen, newest)) {
      this.rejected.unproven++; // about a record that nobody has shown
      return false;
    }
    if (known && hasLeft(known))
      return seen !== undefined && this.#merge({ session_id, tombstone }) === 'news';
    if (peer === this.#self) return this.#answerForSelf({ session_id, tombstone }, markOf(newest), now_ms);
    const claim = { entry: known ? { session_id, tombstone } : entry, announced: this.#announced };
    return this.#claims.take(peer, claim, now_ms);
  }

  #answerForSelf(entry: Entry, seen: RecordMark, now_ms: number): boolean {
    const { session_id } = entry;
    if (now_ms < this.#away_until_ms) return this.#merge(entry) === 'news';
    this.rejected.unproven++;
    const refuted_ms = this.#refuted_ms.get(session_id) ?? Number.NEGATIVE_INFINITY;
    if (now_ms - refuted_ms < this.#options.settings.refute_ms) return false;
    this.#refuted_ms.set(session_id, now_ms);
    this.#pushPullSoon(); // it may have been cut off, and have missed what happened meanwhile
    this.#options.refute(session_id, seen);
    return false;
  }

  /** What was claimed of members that do not answer. */
  #acceptClaims(claims: readonly TombstoneClaim[]): void {
    for (const { entry, announced } of claims) {
      this.#announced = announced;
      const { session_id, record, tombstone } = entry;
      const newest = (record ?? this.#table.entry(session_id)?.record)?.value;
      if (!newest) continue;
      // One that no record could refute counts where it was made. Here it may be wrong, and is about what is known now.
      const left = tombstone!.value.seen
        ? { session_id, tombstone: tombstone! }
        : this.#options.sealTombstone(session_id, tombstone!.value.evidence, markOf(newest));
      this.#merge(record ? { ...left, record } : left);
    }
    this.#announced = false;
  }

  #merge(entry: Entry): MergeOutcome {
    const outcome = this.#table.merge(entry, 'gossip');
    if (outcome === 'forgotten') this.rejected.replayed++;
    return outcome;
  }

  #broadcast(out: Outgoing[]): void {
    this.#broadcast_at_ms = Number.POSITIVE_INFINITY;
    const entries = [...this.#fresh].flatMap((id) => this.#table.entry(id) ?? []);
    this.#fresh.clear();
    out.push(...this.#batches(everyone, entries));
  }

  #batches(to: PeerName, entries: readonly Entry[]): Outgoing[] {
    return batches(to, entries, this.#options.settings);
  }

  #isOversized({ entries }: { entries: readonly Entry[] }): boolean {
    const isOver = entries.length > this.#options.settings.entries_max;
    if (isOver) this.rejected.oversized++;
    return isOver;
  }

  #floods(from: PeerName, now_ms: number, kind: 'messages' | 'announcements'): boolean {
    const isFlood = this.#rates.floods(from, now_ms, kind);
    if (isFlood) this.rejected.flood++;
    return isFlood;
  }

  #sums(): GossipMessage {
    return { kind: 'sums', sums: [...this.#table.sums] };
  }

  #compareSums(from: PeerName, sums: readonly number[]): Outgoing[] {
    const buckets = differingBuckets(this.#table, sums);
    if (buckets.length === 0) return [];
    this.#pushPullSoon();
    const marks = marksOf(this.#table, buckets);
    return [{ to: from, message: { kind: 'marks', buckets, marks } }];
  }

  #compareMarks(from: PeerName, theirs: Extract<GossipMessage, { kind: 'marks' }>): Outgoing[] {
    this.#pushPullSoon();
    const { tell, want } = pushPullDifference(this.#table, theirs.buckets, theirs.marks);
    const out = this.#batches(from, tell);
    if (want.length > 0) out.push({ to: from, message: { kind: 'want', session_ids: want } });
    return out;
  }

  /** Where something was missing, more may be: much is new now. */
  #pushPullSoon(): void {
    const { now_ms, random, settings } = this.#options;
    const soon_ms = now_ms() + settings.push_pull_soon_ms * (0.5 + random());
    this.#push_pull_at_ms = Math.min(this.#push_pull_at_ms, soon_ms);
  }

  #pushPullPeer(): PeerName | undefined {
    const { random, settings } = this.#options;
    const gone = this.#left.names;
    if (gone.length > 0 && random() < settings.push_pull_left_share) {
      return gone[Math.floor(random() * gone.length)];
    }
    const isFar = random() < settings.push_pull_far_share;
    const links = isFar ? this.ring.draw(1, random, [this.#self]) : this.links();
    return links[Math.floor(random() * links.length)] ?? this.#contact;
  }
}
