import { lifecycles, type SessionRecord } from '../spec/session-record.ts';
import { encodeRecord } from './record-codec.ts';

/**
 * The join of two records of one session (LLMFabric §3, G-Map): the later lifecycle wins, then the higher
 * version; two different records of the same lifecycle and version (a defect of their writer) are ordered by
 * their encoding, so that every member chooses the same one. Commutative, associative, idempotent.
 */
export function mergeRecords(a: SessionRecord, b: SessionRecord): SessionRecord {
  if (a.session_id !== b.session_id) {
    throw new TypeError(`records of two sessions cannot be merged: ${a.session_id}, ${b.session_id}`);
  }
  const byLifecycle = lifecycles.indexOf(a.lifecycle) - lifecycles.indexOf(b.lifecycle);
  if (byLifecycle !== 0) return byLifecycle > 0 ? a : b;
  if (a.version !== b.version) return a.version > b.version ? a : b;
  return Buffer.compare(encodeRecord(a), encodeRecord(b)) >= 0 ? a : b;
}
