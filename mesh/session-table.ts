import type { SessionRecord } from '../spec/session-record.ts';
import {
  type Entry,
  effectiveRecord,
  entryFingerprint,
  hasLeft,
  isGossiped,
  isLater,
  markOf,
  mergeRecords,
} from './entry.ts';
import type { RecordMark } from './record-codec.ts';
import type { RegistryChange } from './registry.ts';

/** Where an entry came from: this process, the rendezvous folder, or another member. */
export type EntrySource = (typeof entrySources)[number];
const entrySources = ['own', 'folder', 'gossip'] as const;

/**
 * What a merge came to: `news` changed the table; `known` is what the table holds; `stale` is older than that;
 * `forgotten` belongs to a session whose end is long past.
 */
export type MergeOutcome = 'news' | 'known' | 'stale' | 'forgotten';

/** Sessions are dealt to so many buckets by id; digests are compared bucket by bucket. */
export const bucket_count = 64;

/**
 * Ids of sessions that are over, kept beyond this only as long as there is room: 100 bytes each. Lower: a record
 * that is replayed may come back for the seconds until its watchers miss it; higher: more memory.
 */
const forgotten_max = 100_000;

/** One step of the table; `after` is absent where an entry was dropped. */
export interface TableStep {
  session_id: string;
  before: Entry | undefined;
  after: Entry | undefined;
  source: EntrySource;
}

interface Row {
  entry: Entry;
  /** Every way it came, a bit each. */
  ways: number;
  /** What readers get; made when one asks. */
  effective: SessionRecord | undefined;
}

const bitOf: Record<EntrySource, number> = { own: 1, folder: 2, gossip: 4 };

/**
 * One member's replica of the grow-only map of sessions: the one place where records from the folder, from
 * gossip and from this process meet. It only grows, but for sessions that are over: of those the id remains,
 * so that they do not come back.
 */
export class SessionTable {
  readonly #rows = new Map<string, Row>();
  /** Of sessions that are over, the newest record; the first that was compacted comes first. */
  readonly #forgotten = new Map<string, RecordMark | undefined>();
  readonly #sums: number[] = Array.from({ length: bucket_count }, () => 0);
  readonly #changeCallbacks = new Set<(changes: RegistryChange[]) => void>();
  readonly #stepCallbacks = new Set<(step: TableStep) => void>();
  #changes: RegistryChange[] = [];

  get size(): number {
    return this.#rows.size;
  }

  /**
   * Of each bucket, the sum modulo 2^48 of fingerprints of the entries that are gossiped: tables with the same of these
   * have equal ones.
   */
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
    const row = this.#rows.get(session_id);
    return row && effectiveOf(row);
  }

  snapshot(): SessionRecord[] {
    return [...this.#rows.values()].flatMap((row) => effectiveOf(row) ?? []);
  }

  /** Whether its session was over and compacted: no record of it is taken but a later one. */
  isForgotten(session_id: string): boolean {
    return this.#forgotten.has(session_id);
  }

  /** The newest record of a session that was over and compacted, where one was known. */
  lastMark(session_id: string): RecordMark | undefined {
    return this.#forgotten.get(session_id);
  }

  merge(entry: Entry, source: EntrySource): MergeOutcome {
    const row = this.#rows.get(entry.session_id);
    if (!row && this.#forgotten.has(entry.session_id)) {
      const mark = this.#forgotten.get(entry.session_id);
      if (!mark || !entry.record || !isLater(entry.record.value, mark)) return 'forgotten';
      this.#forgotten.delete(entry.session_id); // it lives, and had only been taken for gone
    }
    const merged = row ? mergeRecords(row.entry, entry) : entry;
    const ways = (row?.ways ?? 0) | bitOf[source];
    if (row) row.ways = ways;
    if (row && merged === row.entry) return isPartOf(entry, row.entry) ? 'known' : 'stale';
    const same = row !== undefined && sameEffect(row.entry, merged);
    const now: Row = { entry: merged, ways, effective: same ? row.effective : undefined };
    this.#rows.set(entry.session_id, now);
    this.#step({ session_id: entry.session_id, before: row?.entry, after: merged, source });
    this.#tell(entry.session_id, row, now);
    return 'news';
  }

  /** Drops an entry. @param forGood a session that is over: it does not come back */
  forget(session_id: string, forGood: boolean): void {
    const row = this.#rows.get(session_id);
    if (!row) return;
    this.#rows.delete(session_id);
    this.#step({ session_id, before: row.entry, after: undefined, source: 'own' });
    if (forGood) {
      const { record } = row.entry;
      this.#forgotten.set(session_id, record && markOf(record.value));
      if (this.#forgotten.size > forgotten_max) {
        const [oldest] = this.#forgotten.keys();
        this.#forgotten.delete(oldest!);
      }
    }
    this.#tell(session_id, row, undefined);
  }

  /** The callback runs when the current turn has finished with the table; returns its removal. */
  onChange(callback: (changes: RegistryChange[]) => void): () => void {
    this.#changeCallbacks.add(callback);
    return () => this.#changeCallbacks.delete(callback);
  }

  /** The callback runs at once, with every change; returns its removal. */
  onStep(callback: (step: TableStep) => void): () => void {
    this.#stepCallbacks.add(callback);
    return () => this.#stepCallbacks.delete(callback);
  }

  /** How an entry came to be known. */
  sourcesOf(session_id: string): EntrySource[] {
    const ways = this.#rows.get(session_id)?.ways ?? 0;
    return entrySources.filter((source) => (ways & bitOf[source]) !== 0);
  }

  #step(step: TableStep): void {
    const { session_id, before, after } = step;
    const bucket = bucketOf(session_id);
    const change = weightOf(after) - weightOf(before);
    this.#sums[bucket] = (this.#sums[bucket]! + change + 2 ** 48) % 2 ** 48;
    for (const callback of this.#stepCallbacks) callback(step);
  }

  #tell(session_id: string, before: Row | undefined, after: Row | undefined): void {
    if (this.#changeCallbacks.size === 0) return;
    if (before && after && sameEffect(before.entry, after.entry)) return;
    const [was, is] = [before && effectiveOf(before), after && effectiveOf(after)];
    if (was === is) return;
    const change: RegistryChange = { session_id };
    if (was) change.before = was;
    if (is) change.after = is;
    const evidence = after?.entry.tombstone?.value.evidence;
    if (evidence !== undefined && after?.entry.record?.value.lifecycle !== 'LEFT')
      change.tombstone_evidence = evidence;
    this.#changes.push(change);
    if (this.#changes.length > 1) return;
    queueMicrotask(() => {
      const told = this.#changes;
      this.#changes = [];
      for (const callback of this.#changeCallbacks) callback(told);
    });
  }
}

function weightOf(entry: Entry | undefined): number {
  return entry && isGossiped(entry) ? entryFingerprint(entry) : 0;
}

/** @param session_id 32 hex digits */
export function bucketOf(session_id: string): number {
  return Number.parseInt(session_id.slice(0, 2), 16) % bucket_count;
}

function effectiveOf(row: Row): SessionRecord | undefined {
  row.effective ??= effectiveRecord(row.entry);
  return row.effective;
}

/** A second tombstone changes nothing that readers see. */
function sameEffect(a: Entry, b: Entry): boolean {
  return a.record === b.record && hasLeft(a) === hasLeft(b);
}

/** Whether everything that a part says is what the whole says. */
function isPartOf(part: Entry, whole: Entry): boolean {
  return (
    (part.record === undefined || part.record.fingerprint === whole.record?.fingerprint) &&
    (part.tombstone === undefined || part.tombstone.fingerprint === whole.tombstone?.fingerprint)
  );
}
