/**
 * A push-pull: two members compare their tables, first by sums of buckets, then by marks of what is in those that
 * differ.
 */
import { type Entry, entryFingerprint, isGossiped } from '../entry.ts';
import { bucket_count, bucketOf, type SessionTable } from '../session-table.ts';
import type { Mark } from './messages.ts';

/** Buckets of which another member has other sums. */
export function differingBuckets(table: SessionTable, sums: readonly number[]): number[] {
  return table.sums.flatMap((sum, bucket) => (sum === sums[bucket] ? [] : [bucket]));
}

/** What this member has in some buckets. */
export function marksOf(table: SessionTable, buckets: readonly number[]): Mark[] {
  return inBuckets(table, buckets).map((entry) => [entry.session_id, entryFingerprint(entry)]);
}

/** What another member is to be told that has these marks in its buckets, and what it is to be asked for. */
export function pushPullDifference(
  table: SessionTable,
  buckets: readonly number[],
  marks: readonly Mark[],
): { tell: Entry[]; want: string[] } {
  const theirs = new Map(marks);
  const tell = inBuckets(
    table,
    buckets.filter((bucket) => bucket < bucket_count),
  ).filter((entry) => theirs.get(entry.session_id) !== entryFingerprint(entry));
  const want = marks.flatMap(([id, fingerprint]) => {
    const known = table.entry(id);
    if (known) return entryFingerprint(known) === fingerprint ? [] : [id];
    return table.isForgotten(id) ? [] : [id];
  });
  return { tell, want };
}

function inBuckets(table: SessionTable, buckets: readonly number[]): Entry[] {
  const asked = new Set(buckets);
  return [...table.entries()].filter((entry) => isGossiped(entry) && asked.has(bucketOf(entry.session_id)));
}
