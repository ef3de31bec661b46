import type { SessionRecord } from '../spec/session-record.ts';
import { believed, type Entry, fingerprintOf, hasLeft, joinEntries } from './entry.ts';
import type { RegistryChange } from './registry.ts';

/** Where an entry came from: this process, the rendezvous folder, or another member. */
export type EntrySource = 'own' | 'folder' | 'gossip';

/**
 * What a merge came to: `news` changed the table; `known` is what the table holds; `stale` is older than that;
 * `forgotten` belongs to a session whose end is long past.
 */
export type MergeOutcome = 'news' | 'known' | 'stale' | 'forgotten';

/** Sessions are dealt to so many buckets by id; digests are compared bucket by bucket. */
const bucket_count = 64;

/**
 * Ids of sessions that are over, kept beyond this only as long as there is room: 100 bytes each. Lower: a record
 * that is replayed may come back for the seconds until its watchers miss it; higher: more memory.
 */
const tombstones_max = 100_000;

interface Row {
  entry: Entry;
  /** What readers get. */
  believed: SessionRecord | undefined;
}

/**
 * One member's replica of the grow-only map of sessions: the one place where records from the folder, from
 * gossip and from this process meet. It only grows, but for sessions that are over: of those the id remains,
 * so that they do not come back.
 */
export class SessionTable {
  readonly #rows = new Map<string, Row>();
  /** Oldest first. */
  readonly #tombstones = new Set<string>();
  readonly #sums: number[] = Array.from({ length: bucket_count }, () => 0);
  readonly #changeCallbacks = new Set<(changes: RegistryChange[]) => void>();
  readonly #entryCallbacks = new Set<(entry: Entry, source: EntrySource) => void>();
  #changes: RegistryChange[] = [];

  get size(): number {
    return this.#rows.size;
  }

  /** Of each bucket, the sum of fingerprints modulo 2^48: equal tables have equal ones. */
  get sums(): readonly number[] {
    return this.#sums;
  }

  entry(session_id: string): Entry | undefined {
    return this.#rows.get(session_id)?.entry;
  }

  *entries(): Generator<Entry> {
    for (const { entry } of this.#rows.values()) yield entry;
  }

  get(session_id: string): SessionRecord | undefined {
    return this.#rows.get(session_id)?.believed;
  }

  snapshot(): SessionRecord[] {
    return [...this.#rows.values()].flatMap((row) => row.believed ?? []);
  }

  isForgotten(session_id: string): boolean {
    return this.#tombstones.has(session_id);
  }

  merge(entry: Entry, source: EntrySource): MergeOutcome {
    const row = this.#rows.get(entry.session_id);
    if (!row && this.#tombstones.has(entry.session_id)) return 'forgotten';
    const joined = row ? joinEntries(row.entry, entry) : entry;
    if (row && joined === row.entry) return isPartOf(entry, row.entry) ? 'known' : 'stale';
    const now: Row = { entry: joined, believed: keepBelief(row, joined) };
    this.#rows.set(entry.session_id, now);
    this.#count(joined, row?.entry);
    this.#tell(entry.session_id, row, now);
    for (const callback of this.#entryCallbacks) callback(joined, source);
    return 'news';
  }

  /** Drops an entry. @param forGood a session that is over: it does not come back */
  forget(session_id: string, forGood: boolean): void {
    const row = this.#rows.get(session_id);
    if (!row) return;
    this.#rows.delete(session_id);
    this.#count(undefined, row.entry);
    if (forGood) {
      this.#tombstones.add(session_id);
      if (this.#tombstones.size > tombstones_max) {
        const [oldest] = this.#tombstones;
        this.#tombstones.delete(oldest!);
      }
    }
    this.#tell(session_id, row, undefined);
  }

  /** The callback runs when the current turn has finished with the table; returns its removal. */
  onChange(callback: (changes: RegistryChange[]) => void): () => void {
    this.#changeCallbacks.add(callback);
    return () => this.#changeCallbacks.delete(callback);
  }

  /** The callback runs at once, with every entry that was news; returns its removal. */
  onEntry(callback: (entry: Entry, source: EntrySource) => void): () => void {
    this.#entryCallbacks.add(callback);
    return () => this.#entryCallbacks.delete(callback);
  }

  #count(after: Entry | undefined, before: Entry | undefined): void {
    const bucket = bucketOf((after ?? before)!.session_id);
    const change = (after ? fingerprintOf(after) : 0) - (before ? fingerprintOf(before) : 0);
    this.#sums[bucket] = (this.#sums[bucket]! + change + 2 ** 48) % 2 ** 48;
  }

  #tell(session_id: string, before: Row | undefined, after: Row | undefined): void {
    if (before?.believed === after?.believed) return;
    const departure = after?.entry.departure?.value.evidence;
    this.#changes.push({
      session_id,
      ...(before?.believed ? { before: before.believed } : {}),
      ...(after?.believed ? { after: after.believed } : {}),
      ...(departure === undefined || after?.entry.record?.value.lifecycle === 'LEFT'
        ? {}
        : { departure_evidence: departure }),
    });
    if (this.#changes.length > 1 || this.#changeCallbacks.size === 0) {
      if (this.#changeCallbacks.size === 0) this.#changes = [];
      return;
    }
    queueMicrotask(() => {
      const told = this.#changes;
      this.#changes = [];
      for (const callback of this.#changeCallbacks) callback(told);
    });
  }
}

function bucketOf(session_id: string): number {
  return Number.parseInt(session_id.slice(0, 2), 16) % bucket_count;
}

/** A second departure changes nothing that readers see. */
function keepBelief(before: Row | undefined, entry: Entry): SessionRecord | undefined {
  const sameRecord = before !== undefined && before.entry.record === entry.record;
  return sameRecord && hasLeft(before.entry) === hasLeft(entry) ? before.believed : believed(entry);
}

/** Whether everything that a part says is what the whole says. */
function isPartOf(part: Entry, whole: Entry): boolean {
  return (
    (part.record === undefined || part.record.fingerprint === whole.record?.fingerprint) &&
    (part.departure === undefined || part.departure.fingerprint === whole.departure?.fingerprint)
  );
}
