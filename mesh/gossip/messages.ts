/** What members of the gossip tell one another. */

/** A session's record as gossip handles it; the signed envelope is opened and judged before it gets here. */
export interface GossipRecord {
  session_id: string;
  /** Where its member listens; stays the same when the member comes back under a new session. */
  address: string;
  /** JOIN 0 < SERVING 1 < DOWN 2 < LEFT 3. */
  lifecycle: 0 | 1 | 2 | 3;
  version: number;
  envelope: Uint8Array;
}

export const left = 3;

/** What one knows of a session, without the record itself. */
export type Mark = readonly [session_id: string, lifecycle: number, version: number];

export type GossipMessage =
  /** A sign of life, sent directly to those who watch over a session; load travels with it. */
  | { kind: 'beat'; session_id: string; load?: unknown }
  | { kind: 'news'; records: readonly GossipRecord[] }
  /** Are you there? `for` another member, who cannot reach you itself. */
  | { kind: 'probe'; nonce: number; session_id: string; for?: string }
  | { kind: 'alive'; nonce: number; session_id: string }
  | { kind: 'probe_for'; nonce: number; session_id: string; address: string }
  /** A digest of all records; members with the same one have nothing to tell each other. */
  | { kind: 'digest'; digest: number; count: number }
  | { kind: 'marks'; marks: readonly Mark[] }
  | { kind: 'want'; session_ids: readonly string[] };

export interface Outgoing {
  to: string;
  message: GossipMessage;
}
