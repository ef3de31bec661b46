/** What members of the gossip tell one another. */
import type { Entry } from '../entry.ts';

/**
 * Name of a member: the process that speaks for one or several sessions. It stays when a session comes back under a new
 * id.
 */
export type PeerName = string;

/** Load of a session, all its models together. */
export interface SessionLoad {
  running: number;
  waiting: number;
  max_sequences: number;
}

/** What one knows of a session, without the entry itself. */
export type Mark = readonly [session_id: string, fingerprint: number];

export type GossipMessage =
  /** A heartbeat of the sender's sessions, with their load. */
  | { kind: 'beat'; sessions: readonly { session_id: string; load?: SessionLoad }[] }
  | { kind: 'news'; entries: readonly Entry[] }
  /** Are you there? */
  | { kind: 'probe'; nonce: number }
  | { kind: 'alive'; nonce: number }
  /** Is it there? Asked of a third member; its answer names the peer again. */
  | { kind: 'probe_for'; nonce: number; peer: PeerName }
  | { kind: 'alive_for'; nonce: number; peer: PeerName }
  /** Sums of the table's buckets: members with the same ones have nothing to tell each other. */
  | { kind: 'sums'; sums: readonly number[] }
  /** What the sender has in the buckets that differ. */
  | { kind: 'marks'; buckets: readonly number[]; marks: readonly Mark[] }
  | { kind: 'want'; session_ids: readonly string[] };

/** In the place of a receiver: all members. */
export const everyone = '*';

export interface Outgoing {
  /** A member, or `everyone`. */
  to: PeerName | typeof everyone;
  message: GossipMessage;
}
