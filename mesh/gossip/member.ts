/**
 * One member of the gossip as a state machine: messages and the passing of time in, messages out. It knows no network,
 * no clock and no keys, so that a thousand of them run in one process, by seed (`simulation.ts`).
 *
 * News is told to all at once (the transport spreads it) and what that misses is found by comparison. Each member is
 * watched over by the next few on the ring, to whom it sends signs of life; one that falls silent is asked directly and
 * through others before its sessions are said to have left. After SWIM (Das et al., 2002), with fixed watchers instead
 * of random ones, so that silence is seen in a bounded time.
 */
import { type Entry, fingerprintOf, hasLeft, travels } from '../entry.ts';
import { bucket_count, bucketOf, type MergeOutcome, type SessionTable } from '../session-table.ts';
import {
  everyone,
  type GossipMessage,
  type Mark,
  type Outgoing,
  type PeerName,
  type SessionLoad,
} from './messages.ts';
import { PeerRing } from './peer-ring.ts';
import type { GossipSettings } from './settings.ts';

export interface GossipMemberOptions {
  self: PeerName;
  table: SessionTable;
  /** The entry that says of a session that it left, with the evidence, signed by this member. */
  departure: (session_id: string, evidence: string) => Entry;
  settings: GossipSettings;
  /** Any clock that goes on evenly; members' clocks need not agree. */
  now_ms: () => number;
  /** 0 to below 1. */
  random: () => number;
}

/** `replayed`: of a session that is over and was compacted; `not_its_own`: a sign of life for another's session. */
export type GossipRejection = 'oversized' | 'flood' | 'replayed' | 'not_its_own';

interface Watched {
  /** When it was last heard; of one never heard, since when it is watched. */
  heard_ms: number;
  ever: boolean;
  /** Since when it is being asked for, and by which number. */
  asked?: { at_ms: number; nonce: number };
}

interface Beat {
  at_ms: number;
  load?: SessionLoad;
}

/** Members that left are remembered to be asked again, so many of them. Higher: larger partitions heal from any side. */
const left_kept = 512;

export class GossipMember {
  readonly ring: PeerRing;
  readonly rejected: Record<GossipRejection, number> = {
    oversized: 0,
    flood: 0,
    replayed: 0,
    not_its_own: 0,
  };
  readonly #options: GossipMemberOptions;
  readonly #table: SessionTable;
  readonly #self: PeerName;
  /** Sessions of which there is something to tell. */
  readonly #fresh = new Set<string>();
  #tell_at_ms = Number.POSITIVE_INFINITY;
  /** What comes by an announcement to all is passed on by who carries it. */
  #announced = false;
  readonly #watched = new Map<PeerName, Watched>();
  /** Members whose last session left, the latest last. */
  readonly #left = new Set<PeerName>();
  readonly #senders = new Map<PeerName, { second: number; messages: number; announcements: number }>();
  /** Questions asked for others, by nonce: who wants to know, and their nonce. */
  readonly #relayed = new Map<number, { to: PeerName; nonce: number; peer: PeerName; at_ms: number }>();
  readonly #beats = new Map<string, Beat>();
  readonly #loads = new Map<string, SessionLoad>();
  /** Who was greeted last: asked again while nobody else is known. */
  #contact: PeerName | undefined;
  #nonce = 0;
  #beat_at_ms: number;
  #load_at_ms: number;
  #compare_at_ms: number;

  constructor(options: GossipMemberOptions) {
    this.#options = options;
    this.#table = options.table;
    this.#self = options.self;
    const now_ms = options.now_ms();
    const { beat_ms, load_ms, compare_ms } = options.settings;
    this.#beat_at_ms = now_ms + options.random() * beat_ms;
    this.#load_at_ms = now_ms + options.random() * load_ms;
    this.#compare_at_ms = now_ms + options.random() * compare_ms;
    this.ring = new PeerRing(options.table);
    options.table.onStep(({ session_id, before, after }) => {
      if (!after) {
        this.#beats.delete(session_id);
        this.#loads.delete(session_id);
        this.#fresh.delete(session_id);
        return;
      }
      const peer = after.record?.value.metadata.peer?.id;
      if (peer === undefined) return; // its folder's business alone
      // Taken for gone while it lives: it was cut off, and has missed what happened meanwhile.
      if (peer === this.#self && hasLeft(after) && !(before && hasLeft(before))) this.#compareSoon();
      if (this.ring.has(peer)) this.#left.delete(peer);
      else this.#remember(peer);
      // A second departure adds nothing that anybody needs to know soon.
      if (before && before.record === after.record && hasLeft(before)) return;
      if (this.#announced) return;
      if (this.#fresh.size === 0) this.#tell_at_ms = options.now_ms() + options.settings.gather_ms;
      this.#fresh.add(session_id);
    });
  }

  /** Members to keep connections to. */
  links(): PeerName[] {
    return this.ring.links(this.#self, this.#options.settings.watchers);
  }

  /** What travels with the signs of life of an own session. */
  setLoad(session_id: string, load: SessionLoad): void {
    this.#loads.set(session_id, load);
  }

  /** The last sign of life of a session that came here; only watchers and gateways get them. */
  lastBeat(session_id: string): { at_ms: number; load?: SessionLoad } | undefined {
    return this.#beats.get(session_id);
  }

  /** First contact: compare with a member that is known by name, and tell it of the own sessions. */
  greet(peer: PeerName): Outgoing[] {
    this.#contact = peer;
    const own = [...this.ring.sessionsOf(this.#self)].flatMap((id) => this.#table.entry(id) ?? []);
    return [{ to: peer, message: this.#sums() }, ...this.#batches(peer, own)];
  }

  /** A connection to a member broke: it may have died, so it is asked now. */
  lost(peer: PeerName): Outgoing[] {
    const watched = this.#watched.get(peer);
    return watched?.ever && watched.asked === undefined
      ? this.#ask(peer, watched, this.#options.now_ms())
      : [];
  }

  /** When `tick` has something to do, at the earliest. */
  nextTick_ms(): number {
    const { settings } = this.#options;
    let next = Math.min(this.#beat_at_ms, this.#compare_at_ms, this.#tell_at_ms);
    for (const [peer, watched] of this.#watched) next = Math.min(next, this.#dueOf(peer, watched, settings));
    return next;
  }

  /** What is to be said now. */
  tick(): Outgoing[] {
    const { settings, random } = this.#options;
    const now_ms = this.#options.now_ms();
    this.#forgiveOwnPause(now_ms);
    const out: Outgoing[] = [];
    if (now_ms >= this.#beat_at_ms) {
      this.#beat_at_ms = now_ms + settings.beat_ms;
      this.#beat(now_ms, out);
      this.#watch(now_ms);
    }
    this.#check(now_ms, out);
    if (now_ms >= this.#tell_at_ms) this.#tell(out);
    if (now_ms >= this.#compare_at_ms) {
      this.#compare_at_ms = now_ms + settings.compare_ms * (0.5 + random());
      const to = this.#someoneToCompareWith();
      if (to !== undefined) out.push({ to, message: this.#sums() });
    }
    return out;
  }

  /** A message that was announced to all. @returns whether it holds anything new, and so is worth passing on */
  hear(from: PeerName, message: GossipMessage): boolean {
    const now_ms = this.#options.now_ms();
    if (message.kind !== 'news' || this.#floods(from, now_ms, 'announcements')) return false;
    if (this.#isOversized(message)) return false;
    this.#announced = true;
    try {
      return message.entries.filter((entry) => this.#take(entry) === 'news').length > 0;
    } finally {
      this.#announced = false;
      this.#seen(from, now_ms);
    }
  }

  /** A message to this member. */
  receive(from: PeerName, message: GossipMessage): Outgoing[] {
    const now_ms = this.#options.now_ms();
    if (this.#floods(from, now_ms, 'messages')) return [];
    this.#seen(from, now_ms);
    switch (message.kind) {
      case 'beat':
        return this.#heardBeat(from, message.sessions, now_ms);
      case 'news':
        if (!this.#isOversized(message)) for (const entry of message.entries) this.#take(entry);
        return [];
      case 'probe':
        return [{ to: from, message: { kind: 'alive', nonce: message.nonce } }];
      case 'probe_for': {
        const nonce = ++this.#nonce;
        this.#relayed.set(nonce, { to: from, nonce: message.nonce, peer: message.peer, at_ms: now_ms });
        return [{ to: message.peer, message: { kind: 'probe', nonce } }];
      }
      case 'alive': {
        const relayed = this.#relayed.get(message.nonce);
        if (relayed?.peer !== from) return [];
        this.#relayed.delete(message.nonce);
        const { to, nonce, peer } = relayed;
        return [{ to, message: { kind: 'alive_for', nonce, peer } }];
      }
      case 'alive_for':
        if (this.#watched.get(message.peer)?.asked?.nonce === message.nonce) this.#seen(message.peer, now_ms);
        return [];
      case 'sums':
        return this.#compareSums(from, message.sums);
      case 'marks':
        return this.#compareMarks(from, message.buckets, message.marks);
      case 'want': {
        const entries = message.session_ids.flatMap((id) => this.#table.entry(id) ?? []);
        return this.#batches(from, entries.filter(travels));
      }
    }
  }

  /** What is still to be told to all, without waiting for more of it. */
  flush(): Outgoing[] {
    const out: Outgoing[] = [];
    this.#tell(out);
    return out;
  }

  // --- signs of life -----------------------------------------------------------------------------------------

  #beat(now_ms: number, out: Outgoing[]): void {
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

  #heardBeat(
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
        // It knows this member, and this one not it. What said that a session is over may be forgotten: it is said again.
        if (!this.#table.isForgotten(session_id)) want.push(session_id);
        else tell.push(this.#options.departure(session_id, 'it was over, and had been compacted'));
      } else if (peer !== from) this.rejected.not_its_own++;
      // It lives and does not know what is said of it.
      else if (hasLeft(entry!)) tell.push(entry!);
      else this.#beats.set(session_id, load === undefined ? { at_ms: now_ms } : { at_ms: now_ms, load });
    }
    const out = this.#batches(from, tell);
    if (want.length > 0) out.push({ to: from, message: { kind: 'want', session_ids: want } });
    return out;
  }

  /** Watches over those before it on the ring; of new ones, silence counts from now on. */
  #watch(now_ms: number): void {
    const { watchers, compare_ms } = this.#options.settings;
    const mine = this.ring.neighbours(this.#self, -watchers);
    for (const peer of this.#watched.keys()) if (!mine.includes(peer)) this.#watched.delete(peer);
    for (const peer of mine)
      if (!this.#watched.has(peer)) this.#watched.set(peer, { heard_ms: now_ms, ever: false });
    for (const [nonce, { at_ms }] of this.#relayed)
      if (now_ms - at_ms > compare_ms) this.#relayed.delete(nonce);
  }

  #seen(peer: PeerName, now_ms: number): void {
    const watched = this.#watched.get(peer);
    if (!watched) return;
    watched.heard_ms = now_ms;
    watched.ever = true;
    delete watched.asked;
  }

  #dueOf(peer: PeerName, { heard_ms, ever, asked }: Watched, settings: GossipSettings): number {
    if (asked === undefined) return heard_ms + (ever ? settings.silence_ms : settings.unheard_ms);
    const rank = this.ring.neighbours(peer, settings.watchers).indexOf(this.#self);
    return asked.at_ms + settings.check_ms + Math.max(0, rank) * settings.stagger_ms;
  }

  #check(now_ms: number, out: Outgoing[]): void {
    const { settings } = this.#options;
    for (const [peer, watched] of this.#watched) {
      if (!this.ring.has(peer)) {
        this.#watched.delete(peer);
        continue;
      }
      if (now_ms < this.#dueOf(peer, watched, settings)) continue;
      if (watched.asked === undefined) {
        out.push(...this.#ask(peer, watched, now_ms));
        continue;
      }
      const silent_s = ((now_ms - watched.heard_ms) / 1000).toFixed(1);
      const evidence = `silent for ${silent_s} s; neither it nor anyone asked about it answered`;
      this.#watched.delete(peer);
      for (const id of [...this.ring.sessionsOf(peer)]) {
        this.#table.merge(this.#options.departure(id, evidence), 'own');
      }
    }
  }

  #ask(peer: PeerName, watched: Watched, now_ms: number): Outgoing[] {
    const nonce = ++this.#nonce;
    watched.asked = { at_ms: now_ms, nonce };
    return [
      { to: peer, message: { kind: 'probe', nonce } },
      ...this.#some(this.#options.settings.helpers, peer).map(
        (to): Outgoing => ({ to, message: { kind: 'probe_for', nonce, peer } }),
      ),
    ];
  }

  /** Where this process itself stood still, others were not silent: nobody listened. */
  #forgiveOwnPause(now_ms: number): void {
    const late_ms = now_ms - this.nextTick_ms();
    if (late_ms < this.#options.settings.beat_ms) return;
    for (const watched of this.#watched.values()) {
      watched.heard_ms += late_ms;
      if (watched.asked) watched.asked.at_ms += late_ms;
    }
  }

  // --- news --------------------------------------------------------------------------------------------------

  #take(entry: Entry): MergeOutcome {
    const outcome = this.#table.merge(entry, 'gossip');
    if (outcome === 'forgotten') this.rejected.replayed++;
    return outcome;
  }

  #tell(out: Outgoing[]): void {
    this.#tell_at_ms = Number.POSITIVE_INFINITY;
    const entries = [...this.#fresh].flatMap((id) => this.#table.entry(id) ?? []);
    this.#fresh.clear();
    out.push(...this.#batches(everyone, entries));
  }

  #batches(to: PeerName, entries: readonly Entry[]): Outgoing[] {
    const { entries_max, envelope_bytes_max } = this.#options.settings;
    const out: Outgoing[] = [];
    let batch: Entry[] = [];
    let bytes = 0;
    for (const entry of entries) {
      const more = envelopeBytes(entry);
      if (batch.length === entries_max || (batch.length > 0 && bytes + more > envelope_bytes_max)) {
        out.push({ to, message: { kind: 'news', entries: batch } });
        batch = [];
        bytes = 0;
      }
      batch.push(entry);
      bytes += more;
    }
    if (batch.length > 0) out.push({ to, message: { kind: 'news', entries: batch } });
    return out;
  }

  #isOversized({ entries }: { entries: readonly Entry[] }): boolean {
    if (entries.length <= this.#options.settings.entries_max) return false;
    this.rejected.oversized++;
    return true;
  }

  #floods(from: PeerName, now_ms: number, kind: 'messages' | 'announcements'): boolean {
    const second = Math.floor(now_ms / 1000);
    let sender = this.#senders.get(from);
    if (sender?.second !== second) {
      if (this.#senders.size > 4096) this.#senders.clear();
      sender = { second, messages: 0, announcements: 0 };
      this.#senders.set(from, sender);
    }
    const { messages_per_s, announcements_per_s } = this.#options.settings;
    if (++sender[kind] <= (kind === 'messages' ? messages_per_s : announcements_per_s)) return false;
    this.rejected.flood++;
    return true;
  }

  // --- comparing ---------------------------------------------------------------------------------------------

  #sums(): GossipMessage {
    return { kind: 'sums', sums: [...this.#table.sums] };
  }

  #compareSums(from: PeerName, sums: readonly number[]): Outgoing[] {
    const own = this.#table.sums;
    const buckets = own.flatMap((sum, bucket) => (sum === sums[bucket] ? [] : [bucket]));
    if (buckets.length === 0) return [];
    this.#compareSoon();
    const marks = this.#inBuckets(buckets).map((entry): Mark => [entry.session_id, fingerprintOf(entry)]);
    return [{ to: from, message: { kind: 'marks', buckets, marks } }];
  }

  #compareMarks(from: PeerName, buckets: readonly number[], marks: readonly Mark[]): Outgoing[] {
    this.#compareSoon();
    const theirs = new Map(marks);
    const tell = this.#inBuckets(buckets.filter((bucket) => bucket < bucket_count)).filter(
      (entry) => theirs.get(entry.session_id) !== fingerprintOf(entry),
    );
    const want = marks.flatMap(([id, fingerprint]) => {
      const known = this.#table.entry(id);
      if (known) return fingerprintOf(known) === fingerprint ? [] : [id];
      return this.#table.isForgotten(id) ? [] : [id];
    });
    const out = this.#batches(from, tell);
    if (want.length > 0) out.push({ to: from, message: { kind: 'want', session_ids: want } });
    return out;
  }

  /** Where something was missing, more may be: much is new now. */
  #compareSoon(): void {
    const { now_ms, random, settings } = this.#options;
    const soon_ms = now_ms() + settings.compare_soon_ms * (0.5 + random());
    this.#compare_at_ms = Math.min(this.#compare_at_ms, soon_ms);
  }

  #inBuckets(buckets: readonly number[]): Entry[] {
    const asked = new Set(buckets);
    return [...this.#table.entries()].filter(
      (entry) => travels(entry) && asked.has(bucketOf(entry.session_id)),
    );
  }

  #someoneToCompareWith(): PeerName | undefined {
    const { random, settings } = this.#options;
    if (this.#left.size > 0 && random() < settings.compare_with_left) {
      const gone = [...this.#left];
      return gone[Math.floor(random() * gone.length)];
    }
    const links = random() < settings.compare_far ? this.#some(1) : this.links();
    return links[Math.floor(random() * links.length)] ?? this.#contact;
  }

  /** Random members, others than itself. */
  #some(count: number, except?: PeerName): PeerName[] {
    const { names } = this.ring;
    const found = new Set<PeerName>();
    for (let tries = 0; found.size < count && tries < 4 * count && names.length > 1; tries++) {
      const name = names[Math.floor(this.#options.random() * names.length)]!;
      if (name !== except && name !== this.#self) found.add(name);
    }
    return [...found];
  }

  #remember(peer: PeerName): void {
    if (peer === this.#self) return;
    this.#left.delete(peer);
    this.#left.add(peer);
    if (this.#left.size > left_kept) {
      const [oldest] = this.#left;
      this.#left.delete(oldest!);
    }
  }
}

function envelopeBytes({ record, departure }: Entry): number {
  return (record?.envelope.length ?? 0) + (departure?.envelope.length ?? 0);
}
