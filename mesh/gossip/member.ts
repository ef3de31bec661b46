/**
 * One member of the gossip as a state machine: messages and the passing of time in, messages out. It knows no network,
 * no clock and no keys, so that a thousand of them run in one process, by seed (`simulation.ts`).
 *
 * News spreads by rumour (each passes on for some rounds what is new to it) and by comparison of digests. Each session
 * is watched over by the next few on the ring of session ids, to whom it sends signs of life; one that falls silent is
 * asked directly and through others before it is said to have left. After SWIM (Das et al., 2002), with fixed watchers
 * instead of random ones, so that silence is seen in a bounded time.
 */
import { type GossipMessage, type GossipRecord, left, type Outgoing } from './messages.ts';
import { RecordMap } from './record-map.ts';
import type { GossipSettings } from './settings.ts';

export interface GossipMemberOptions {
  /** Its own record, and how it makes the record of a session that left. */
  own: GossipRecord;
  assertLeft: (record: GossipRecord, evidence: string) => GossipRecord;
  /** Called when others say that the own session left: gives the record of a new one. */
  comeBack: () => GossipRecord;
  settings: GossipSettings;
  /** 0 to below 1. */
  random: () => number;
  onChange?: (record: GossipRecord) => void;
  onLoad?: (session_id: string, load: unknown) => void;
}

export type GossipRejection = 'oversized' | 'flood' | 'unknown_sender';

interface Watched {
  heard_ms: number;
  /** Since when it is being asked for. */
  asked_ms?: number;
}

interface Sender {
  second: number;
  messages: number;
}

export class GossipMember {
  readonly records = new RecordMap();
  readonly rejected: Record<GossipRejection, number> = { oversized: 0, flood: 0, unknown_sender: 0 };
  readonly #options: GossipMemberOptions;
  #own: GossipRecord;
  /** Records that are passed on, and for how many rounds more. */
  readonly #hot = new Map<string, number>();
  readonly #watched = new Map<string, Watched>();
  /** When sessions were first seen to have left. */
  readonly #left_ms = new Map<string, number>();
  readonly #senders = new Map<string, Sender>();
  /** Questions asked for others, by nonce: who wants to know, and their nonce. */
  readonly #relayed = new Map<number, { to: string; nonce: number; at_ms: number }>();
  #nonce = 0;
  #beat_at_ms = 0;
  #round_at_ms = 0;
  #compare_at_ms: number;
  #load: unknown;

  constructor(options: GossipMemberOptions, now_ms: number) {
    this.#options = options;
    this.#own = options.own;
    const { compare_ms } = options.settings;
    this.#compare_at_ms = now_ms + options.random() * compare_ms;
    this.#take(options.own, now_ms);
  }

  get own(): GossipRecord {
    return this.#own;
  }

  /** What travels with signs of life. */
  set load(load: unknown) {
    this.#load = load;
  }

  /** A new version of the own record. */
  update(record: GossipRecord, now_ms: number): void {
    this.#own = record;
    this.#take(record, now_ms);
  }

  /** First contact: compare with a member that is known by its address. */
  join(address: string): Outgoing[] {
    return [{ to: address, message: { kind: 'marks', marks: this.records.marks() } }, this.#newsTo(address)];
  }

  /** When `tick` has something to do, at the earliest. */
  nextTick_ms(): number {
    const { silence_ms, check_ms } = this.#options.settings;
    let next = Math.min(this.#beat_at_ms, this.#compare_at_ms);
    if (this.#hot.size > 0) next = Math.min(next, this.#round_at_ms);
    for (const { heard_ms, asked_ms } of this.#watched.values())
      next = Math.min(next, asked_ms === undefined ? heard_ms + silence_ms : asked_ms + check_ms);
    return next;
  }

  tick(now_ms: number): Outgoing[] {
    const { settings, random } = this.#options;
    const out: Outgoing[] = [];
    if (now_ms >= this.#beat_at_ms) {
      this.#beat_at_ms = now_ms + settings.beat_ms;
      out.push(...this.#beats());
      this.#watch(now_ms);
      this.#forgetOld(now_ms);
    }
    this.#check(now_ms, out);
    if (this.#hot.size > 0 && now_ms >= this.#round_at_ms) {
      this.#round_at_ms = now_ms + settings.round_ms;
      this.#spread(out);
    }
    if (now_ms >= this.#compare_at_ms) {
      this.#compare_at_ms = now_ms + settings.compare_ms * (0.5 + random());
      const to = this.#someoneToCompareWith();
      if (to !== undefined)
        out.push({ to, message: { kind: 'digest', digest: this.records.digest, count: this.records.size } });
    }
    return out;
  }

  receive(from: string, message: GossipMessage, now_ms: number): Outgoing[] {
    if (this.#floods(from, now_ms)) return [];
    switch (message.kind) {
      case 'beat':
        return this.#heard(from, message.session_id, message.load, now_ms);
      case 'news':
        return this.#news(message.records, now_ms);
      case 'probe': {
        if (message.session_id !== this.#own.session_id) return [];
        return [
          { to: from, message: { kind: 'alive', nonce: message.nonce, session_id: this.#own.session_id } },
        ];
      }
      case 'probe_for': {
        const nonce = ++this.#nonce;
        this.#relayed.set(nonce, { to: from, nonce: message.nonce, at_ms: now_ms });
        return [{ to: message.address, message: { kind: 'probe', nonce, session_id: message.session_id } }];
      }
      case 'alive': {
        const relayed = this.#relayed.get(message.nonce);
        this.#relayed.delete(message.nonce);
        const watched = this.#watched.get(message.session_id);
        if (watched) this.#watched.set(message.session_id, { heard_ms: now_ms });
        return relayed
          ? [
              {
                to: relayed.to,
                message: { kind: 'alive', nonce: relayed.nonce, session_id: message.session_id },
              },
            ]
          : [];
      }
      case 'digest':
        if (message.digest === this.records.digest && message.count === this.records.size) return [];
        return [{ to: from, message: { kind: 'marks', marks: this.records.marks() } }];
      case 'marks':
        return this.#compare(from, message.marks);
      case 'want':
        return this.#batches(
          from,
          message.session_ids.flatMap((id) => this.records.get(id) ?? []),
        );
    }
  }

  #beats(): Outgoing[] {
    const { watchers } = this.#options.settings;
    const message: GossipMessage = {
      kind: 'beat',
      session_id: this.#own.session_id,
      ...(this.#load === undefined ? {} : { load: this.#load }),
    };
    return this.records
      .neighbours(this.#own.session_id, watchers)
      .map((id) => ({ to: this.records.get(id)!.address, message }));
  }

  /** Watches over those before it on the ring; of new ones, silence counts from now on. */
  #watch(now_ms: number): void {
    const { watchers, compare_ms } = this.#options.settings;
    const mine = new Set(this.records.neighbours(this.#own.session_id, -watchers));
    for (const id of this.#watched.keys()) if (!mine.has(id)) this.#watched.delete(id);
    for (const id of mine) if (!this.#watched.has(id)) this.#watched.set(id, { heard_ms: now_ms });
    for (const [nonce, { at_ms }] of this.#relayed)
      if (now_ms - at_ms > compare_ms) this.#relayed.delete(nonce);
  }

  #check(now_ms: number, out: Outgoing[]): void {
    const { silence_ms, check_ms, helpers } = this.#options.settings;
    for (const [id, watched] of this.#watched) {
      const record = this.records.get(id);
      if (record === undefined || record.lifecycle >= left) {
        this.#watched.delete(id);
        continue;
      }
      if (watched.asked_ms === undefined && now_ms >= watched.heard_ms + silence_ms) {
        watched.asked_ms = now_ms;
        const nonce = ++this.#nonce;
        const { session_id, address } = record;
        out.push({ to: address, message: { kind: 'probe', nonce, session_id } });
        for (const to of this.#someLive(helpers, id))
          out.push({ to, message: { kind: 'probe_for', nonce, session_id, address } });
      } else if (watched.asked_ms !== undefined && now_ms >= watched.asked_ms + check_ms) {
        const silent_s = ((now_ms - watched.heard_ms) / 1000).toFixed(1);
        const evidence = `silent for ${silent_s} s; neither it nor anyone asked about it answered`;
        this.#watched.delete(id);
        this.#take(this.#options.assertLeft(record, evidence), now_ms);
      }
    }
  }

  #spread(out: Outgoing[]): void {
    const { fanout, records_max } = this.#options.settings;
    const ids = [...this.#hot.keys()].slice(0, records_max);
    const records = ids.map((id) => this.records.get(id)!);
    for (const to of this.#someLive(fanout)) out.push({ to, message: { kind: 'news', records } });
    for (const id of ids) {
      const rounds = this.#hot.get(id)! - 1;
      if (rounds > 0) this.#hot.set(id, rounds);
      else this.#hot.delete(id);
    }
  }

  #heard(from: string, session_id: string, load: unknown, now_ms: number): Outgoing[] {
    const record = this.records.get(session_id);
    if (record === undefined) {
      this.rejected.unknown_sender++;
      // It knows this member, and this one not it: the records tell.
      return [{ to: from, message: { kind: 'want', session_ids: [session_id] } }];
    }
    // It lives and does not know what is said of it.
    if (record.lifecycle >= left) return [{ to: from, message: { kind: 'news', records: [record] } }];
    if (this.#watched.has(session_id)) this.#watched.set(session_id, { heard_ms: now_ms });
    if (load !== undefined) this.#options.onLoad?.(session_id, load);
    return [];
  }

  #news(records: readonly GossipRecord[], now_ms: number): Outgoing[] {
    if (records.length > this.#options.settings.records_max) {
      this.rejected.oversized++;
      return [];
    }
    for (const record of records) this.#take(record, now_ms);
    return [];
  }

  #compare(from: string, marks: readonly (readonly [string, number, number])[]): Outgoing[] {
    const theirs = new Map(marks.map((mark) => [mark[0], mark]));
    const want = marks.filter((mark) => this.records.lacks(mark)).map(([id]) => id);
    const tell = [...this.records.values()].filter(({ session_id, lifecycle, version }) => {
      const mark = theirs.get(session_id);
      return mark === undefined || lifecycle > mark[1] || (lifecycle === mark[1] && version > mark[2]);
    });
    const out = this.#batches(from, tell);
    if (want.length > 0) out.push({ to: from, message: { kind: 'want', session_ids: want } });
    return out;
  }

  /** Merges; what is news is passed on, and news of the own end is answered with a new beginning. */
  #take(record: GossipRecord, now_ms: number): void {
    if (!this.records.merge(record)) return;
    if (this.#hot.size === 0) this.#round_at_ms = now_ms;
    this.#hot.set(record.session_id, this.#options.settings.rounds);
    if (record.lifecycle >= left) this.#left_ms.set(record.session_id, now_ms);
    this.#options.onChange?.(record);
    if (
      record.session_id === this.#own.session_id &&
      record.lifecycle >= left &&
      this.#own.lifecycle < left
    ) {
      this.#own = this.#options.comeBack();
      this.#watched.clear();
      this.#beat_at_ms = now_ms;
      this.#take(this.#own, now_ms);
    }
  }

  #forgetOld(now_ms: number): void {
    const { forget_ms } = this.#options.settings;
    for (const [id, at_ms] of this.#left_ms) {
      if (now_ms - at_ms < forget_ms) break;
      this.records.forget(id);
      this.#left_ms.delete(id);
    }
  }

  #floods(from: string, now_ms: number): boolean {
    const second = Math.floor(now_ms / 1000);
    const sender = this.#senders.get(from);
    if (sender === undefined || sender.second !== second) {
      this.#senders.set(from, { second, messages: 1 });
      return false;
    }
    sender.messages++;
    if (sender.messages <= this.#options.settings.messages_per_s) return false;
    this.rejected.flood++;
    return true;
  }

  #batches(to: string, records: readonly GossipRecord[]): Outgoing[] {
    const { records_max } = this.#options.settings;
    const out: Outgoing[] = [];
    for (let at = 0; at < records.length; at += records_max)
      out.push({ to, message: { kind: 'news', records: records.slice(at, at + records_max) } });
    return out;
  }

  #newsTo(to: string): Outgoing {
    return { to, message: { kind: 'news', records: [this.#own] } };
  }

  /** Addresses of random sessions that have not left, others than the own; of those that left lately where there are few. */
  #someLive(count: number, except?: string): string[] {
    const { ring } = this.records;
    const { random } = this.#options;
    const found = new Set<string>();
    for (let tries = 0; found.size < count && tries < 4 * count && ring.length > 1; tries++) {
      const id = ring[Math.floor(random() * ring.length)]!;
      const { address } = this.records.get(id)!;
      if (id !== except && address !== this.#own.address) found.add(address);
    }
    if (found.size < count)
      for (const id of [...this.#left_ms.keys()].slice(-4 * count)) {
        const address = this.records.get(id)?.address;
        if (address !== undefined && address !== this.#own.address && found.size < count) found.add(address);
      }
    return [...found];
  }

  #someoneToCompareWith(): string | undefined {
    const { random, settings } = this.#options;
    const gone = [...this.#left_ms.keys()];
    if (gone.length > 0 && random() < settings.compare_with_left) {
      const address = this.records.get(gone[Math.floor(random() * gone.length)]!)?.address;
      if (address !== undefined && address !== this.#own.address) return address;
    }
    return this.#someLive(1)[0];
  }
}
