import { createHash } from 'node:crypto';
import { lifecycles, type SessionRecord } from '../spec/session-record.ts';
import {
  openRecord,
  openTombstone,
  type RecordMark,
  RecordRejected,
  type Tombstone,
} from './record-codec.ts';

/** A record or a tombstone, opened and checked, with the envelope that proves it. */
export interface Signed<T> {
  readonly value: T;
  readonly envelope: Uint8Array;
  /** First 6 bytes of SHA-256 over the envelope: equal for equal envelopes. */
  readonly fingerprint: number;
}

/**
 * All that is known of one session: what its own key says, and what a peer says that saw it gone. An element of
 * a product of two lattices: records (by lifecycle, version, bytes) and tombstones (by the record that they are about,
 * then bytes; none is least). A tombstone that a later record refutes is as none.
 */
export interface Entry {
  readonly session_id: string;
  readonly record?: Signed<SessionRecord>;
  readonly tombstone?: Signed<Tombstone>;
}

/** An entry as it is sent and lies in files. */
export interface SealedEntry {
  record?: Uint8Array | undefined;
  tombstone?: Uint8Array | undefined;
}

/** Checks everything there is to check about an entry. @throws RecordRejected */
export function openEntry({ record, tombstone }: SealedEntry, networkKey: Uint8Array): Entry {
  const signedRecord = record && signed(openRecord(record, networkKey), record);
  const signedTombstone = tombstone && signed(openTombstone(tombstone, networkKey), tombstone);
  const session_id = (signedRecord ?? signedTombstone)?.value.session_id;
  if (session_id === undefined) throw new TypeError('an entry holds a record, a tombstone, or both');
  const ofTheSame = signedTombstone?.value.session_id === session_id ? signedTombstone : undefined;
  return entryOf(session_id, signedRecord, ofTheSame);
}

/**
 * What a sealed entry says beyond what is known of its session; only that is verified, since signatures cost.
 *
 * @returns undefined where it says nothing new
 */
export function unknownPart(
  { record, tombstone }: SealedEntry,
  known: Entry | undefined,
): SealedEntry | undefined {
  const unknown: SealedEntry = {};
  if (record && envelopeFingerprint(record) !== known?.record?.fingerprint) unknown.record = record;
  if (tombstone && envelopeFingerprint(tombstone) !== known?.tombstone?.fingerprint)
    unknown.tombstone = tombstone;
  return unknown.record || unknown.tombstone ? unknown : undefined;
}

/** Opens an entry that is said to be of some session. @throws RecordRejected */
export function openEntryOf(session_id: string, sealed: SealedEntry, networkKey: Uint8Array): Entry {
  const entry = openEntry(sealed, networkKey);
  if (entry.session_id !== session_id || (sealed.tombstone && !entry.tombstone && !sealed.record)) {
    throw new RecordRejected('wrong_name', `it is of session ${entry.session_id}`);
  }
  return entry;
}

export function sealedEntry({ record, tombstone }: Entry): SealedEntry {
  return { record: record?.envelope, tombstone: tombstone?.envelope };
}

/**
 * The merge of two entries of one session (LLMFabric §3, G-Map): of records the later lifecycle wins, then the
 * higher version; two different records of the same lifecycle and version (a defect of their writer) are ordered
 * by their bytes, so that every member chooses the same one; of tombstones the one wins that is about the later
 * record, and none is left where the record is later still. Commutative, associative, idempotent. Returns `a` itself
 * where `b` adds nothing.
 */
export function mergeRecords(a: Entry, b: Entry): Entry {
  if (a.session_id !== b.session_id) {
    throw new TypeError(`entries of two sessions cannot be merged: ${a.session_id}, ${b.session_id}`);
  }
  const record = greater(a.record, b.record, compareRecords);
  const tombstone = greater(a.tombstone, b.tombstone, compareTombstones);
  const merged = entryOf(a.session_id, record, tombstone);
  return merged.record === a.record && merged.tombstone === a.tombstone ? a : merged;
}

/** In the place of a tombstone's own fingerprint; any odd number would do. */
const anyTombstone = 0x9e37_79b9_7f4b;

/**
 * Equal for entries of the same record that both have left or both have not: who says that it left, and in which words,
 * is nothing that members have to agree on. Of others, different but for one in 2^48.
 */
export function entryFingerprint({ record, tombstone }: Entry): number {
  return ((record?.fingerprint ?? 0) + (tombstone ? anyTombstone : 0)) % 2 ** 48;
}

/** Whether the session is over, by its own word or a peer's. */
export function hasLeft({ record, tombstone }: Entry): boolean {
  return tombstone !== undefined || record?.value.lifecycle === 'LEFT';
}

/** Whether gossip carries it: sessions that no peer speaks for stay in their folder. */
export function isGossiped({ record }: Entry): boolean {
  return record?.value.metadata.peer !== undefined;
}

/** The record that counts: LEFT where a peer said so. */
export function effectiveRecord({ record, tombstone }: Entry): SessionRecord | undefined {
  if (!record) return undefined;
  return tombstone === undefined || record.value.lifecycle === 'LEFT'
    ? record.value
    : { ...record.value, lifecycle: 'LEFT' };
}

/** Whether a record is later than the one of the mark, and of a session that goes on. */
export function isLater(record: RecordMark, mark: RecordMark): boolean {
  return record.lifecycle !== 'LEFT' && compareMarks(record, mark) > 0;
}

export function markOf({ lifecycle, version }: SessionRecord): RecordMark {
  return { lifecycle, version };
}

/** Objects of just their size: spread ones have room for more. */
function entryOf(session_id: string, record: Entry['record'], said: Entry['tombstone']): Entry {
  const seen = said?.value.seen;
  const tombstone = record && seen && compareMarks(record.value, seen) > 0 ? undefined : said;
  if (!record) return tombstone ? { session_id, tombstone } : { session_id };
  return tombstone ? { session_id, record, tombstone } : { session_id, record };
}

function signed<T>(value: T, envelope: Uint8Array): Signed<T> {
  return { value, envelope, fingerprint: envelopeFingerprint(envelope) };
}

function envelopeFingerprint(envelope: Uint8Array): number {
  return createHash('sha256').update(envelope).digest().readUIntBE(0, 6);
}

function greater<T>(
  a: Signed<T> | undefined,
  b: Signed<T> | undefined,
  compare: (a: Signed<T>, b: Signed<T>) => number,
): Signed<T> | undefined {
  if (!a || !b) return a ?? b;
  return compare(a, b) >= 0 ? a : b;
}

function compareRecords(a: Signed<SessionRecord>, b: Signed<SessionRecord>): number {
  return compareMarks(a.value, b.value) || compareBytes(a, b);
}

function compareMarks(a: RecordMark, b: RecordMark): number {
  return lifecycles.indexOf(a.lifecycle) - lifecycles.indexOf(b.lifecycle) || a.version - b.version;
}

/** Of those that are about all records, and of those about the same one, the bytes decide. */
function compareTombstones(a: Signed<Tombstone>, b: Signed<Tombstone>): number {
  const [one, other] = [a.value.seen, b.value.seen];
  if (one && other) return compareMarks(one, other) || compareBytes(a, b);
  return Number(other !== undefined) - Number(one !== undefined) || compareBytes(a, b);
}

function compareBytes(a: Signed<unknown>, b: Signed<unknown>): number {
  return a.fingerprint === b.fingerprint ? 0 : Buffer.compare(a.envelope, b.envelope);
}
