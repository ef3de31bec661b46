import { createHash } from 'node:crypto';
import { lifecycles, type SessionRecord } from '../spec/session-record.ts';
import { type Departure, openDeparture, openRecord, RecordRejected } from './record-codec.ts';

/** A record or a departure, opened and checked, with the envelope that proves it. */
export interface Signed<T> {
  readonly value: T;
  readonly envelope: Uint8Array;
  /** First 6 bytes of SHA-256 over the envelope: equal for equal envelopes. */
  readonly fingerprint: number;
}

/**
 * All that is known of one session: what its own key says, and what a peer says that saw it gone. An element of
 * a product of two lattices: records (by lifecycle, version, bytes) and departures (by bytes; none is least).
 */
export interface Entry {
  readonly session_id: string;
  readonly record?: Signed<SessionRecord>;
  readonly departure?: Signed<Departure>;
}

/** An entry as it travels and lies in files. */
export interface SealedEntry {
  record?: Uint8Array;
  departure?: Uint8Array;
}

/** Checks everything there is to check about an entry. @throws RecordRejected */
export function openEntry({ record, departure }: SealedEntry, networkKey: Uint8Array): Entry {
  const signedRecord = record && signed(openRecord(record, networkKey), record);
  const signedDeparture = departure && signed(openDeparture(departure, networkKey), departure);
  const session_id = (signedRecord ?? signedDeparture)?.value.session_id;
  if (session_id === undefined) throw new TypeError('an entry holds a record, a departure, or both');
  const ofTheSame = signedDeparture?.value.session_id === session_id ? signedDeparture : undefined;
  return entryOf(session_id, signedRecord, ofTheSame);
}

/**
 * What a sealed entry says beyond what is known of its session; only that is verified, since signatures cost.
 *
 * @returns undefined where it says nothing new
 * @throws RecordRejected
 */
export function openUnknown(
  session_id: string,
  { record, departure }: SealedEntry,
  known: Entry | undefined,
  networkKey: Uint8Array,
): Entry | undefined {
  const unknown: SealedEntry = {
    ...(record && fingerprintOfBytes(record) !== known?.record?.fingerprint ? { record } : {}),
    ...(departure && fingerprintOfBytes(departure) !== known?.departure?.fingerprint ? { departure } : {}),
  };
  if (!unknown.record && !unknown.departure) return undefined;
  const entry = openEntry(unknown, networkKey);
  if (entry.session_id !== session_id || (unknown.departure && !entry.departure)) {
    throw new RecordRejected('wrong_name', `it is of session ${entry.session_id}`);
  }
  return entry;
}

export function sealedEntry({ record, departure }: Entry): SealedEntry {
  return {
    ...(record ? { record: record.envelope } : {}),
    ...(departure ? { departure: departure.envelope } : {}),
  };
}

/**
 * The join of two entries of one session (LLMFabric §3, G-Map): of records the later lifecycle wins, then the
 * higher version; two different records of the same lifecycle and version (a defect of their writer) are ordered
 * by their bytes, so that every member chooses the same one; so are departures. Commutative, associative,
 * idempotent. Returns `a` itself where `b` adds nothing.
 */
export function joinEntries(a: Entry, b: Entry): Entry {
  if (a.session_id !== b.session_id) {
    throw new TypeError(`entries of two sessions cannot be joined: ${a.session_id}, ${b.session_id}`);
  }
  const record = greater(a.record, b.record, compareRecords);
  const departure = greater(a.departure, b.departure, compareBytes);
  if (record === a.record && departure === a.departure) return a;
  return entryOf(a.session_id, record, departure);
}

/** Equal for equal entries; of different ones, different but for one in 2^48. */
export function fingerprintOf({ record, departure }: Entry): number {
  return ((record?.fingerprint ?? 0) + 3 * (departure?.fingerprint ?? 0)) % 2 ** 48;
}

/** Whether the session is over, by its own word or a peer's. */
export function hasLeft({ record, departure }: Entry): boolean {
  return departure !== undefined || record?.value.lifecycle === 'LEFT';
}

/** Whether gossip carries it: sessions that no peer speaks for stay in their folder. */
export function travels({ record }: Entry): boolean {
  return record?.value.metadata.peer !== undefined;
}

/** The record as members believe it: LEFT where a peer said so. */
export function believed({ record, departure }: Entry): SessionRecord | undefined {
  if (!record) return undefined;
  return departure === undefined || record.value.lifecycle === 'LEFT'
    ? record.value
    : { ...record.value, lifecycle: 'LEFT' };
}

/** Objects of just their size: spread ones have room for more. */
function entryOf(session_id: string, record: Entry['record'], departure: Entry['departure']): Entry {
  if (!record) return departure ? { session_id, departure } : { session_id };
  return departure ? { session_id, record, departure } : { session_id, record };
}

function signed<T>(value: T, envelope: Uint8Array): Signed<T> {
  return { value, envelope, fingerprint: fingerprintOfBytes(envelope) };
}

function fingerprintOfBytes(envelope: Uint8Array): number {
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
  const byLifecycle = lifecycles.indexOf(a.value.lifecycle) - lifecycles.indexOf(b.value.lifecycle);
  return byLifecycle || a.value.version - b.value.version || compareBytes(a, b);
}

function compareBytes(a: Signed<unknown>, b: Signed<unknown>): number {
  return a.fingerprint === b.fingerprint ? 0 : Buffer.compare(a.envelope, b.envelope);
}
