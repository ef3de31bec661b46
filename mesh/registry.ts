import type { SessionMetadata, SessionRecord } from '../spec/session-record.ts';
import type { Credential } from './credential.ts';
import type { RecordMark, RejectReason } from './record-codec.ts';
import type { SessionIdentity } from './session-identity.ts';

/** One session whose record changed in this member's view. `after` is absent where a dead record was forgotten. */
export interface RegistryChange {
  session_id: string;
  before?: SessionRecord;
  after?: SessionRecord;
  /** Set where a peer asserted that the session is gone: what it saw. */
  tombstone_evidence?: string;
}

export interface RegistryStatus {
  /**
   * `ok`; `unreachable`: the view is as old as `reason` says and own changes wait to be written;
   * `foreign_key`: the folder now belongs to another mesh.
   */
  state: 'ok' | 'unreachable' | 'foreign_key';
  reason?: string;
  /** Envelopes that did not count, by reason, since the start of this process. */
  rejected: Partial<Record<RejectReason, number>>;
  /** The last few of them, newest last. */
  recent_rejections: { file: string; reason: RejectReason; message: string }[];
}

/** The process that speaks for sessions in the gossip. */
export type PeerDescription = NonNullable<SessionMetadata['peer']>;

/** This member's replica of the mesh's grow-only map of sessions. */
export interface Registry {
  /** The peer of this process; own sessions name it in their records, and follow it when it changes. */
  readonly peer: PeerDescription | undefined;
  onPeer(callback: () => void): () => void;
  /**
   * The callback runs where members take an own session for gone, or are told to, though it lives: a record later than
   * `seen` shows them that it does.
   */
  onDisputed(callback: (session_id: string, seen: RecordMark) => void): () => void;
  /**
   * Makes a record of an own session known. Resolves when it is stored for others to see, or when a first
   * attempt failed; it is then repeated until it succeeds (see `status`), and local readers see it at once.
   *
   * @param credential proves whose session it is; without one nobody's
   * @throws TypeError where `identity` is not the key of `record`
   */
  publish(record: SessionRecord, identity: SessionIdentity, credential?: Credential): Promise<void>;
  /**
   * Tells every member that a session is gone which can no longer say so itself (its job ended, its node died).
   * The session becomes LEFT everywhere; if it lives, it notices and comes back under a new id.
   */
  retire(sessionId: string, evidence: string, reporter: SessionIdentity): Promise<void>;
  /** Every known record, LEFT ones included, in no order. */
  snapshot(): SessionRecord[];
  get(sessionId: string): SessionRecord | undefined;
  status(): RegistryStatus;
  /** Looks for news now. Calls that come while one runs share it; never throws for a folder that is away. */
  refresh(): Promise<void>;
  /** The callback runs after the view changed; returns its removal. */
  onChange(callback: (changes: RegistryChange[]) => void): () => void;
  onStatus(callback: (status: RegistryStatus) => void): () => void;
  /** Stops looking; stored records stay. */
  close(): Promise<void>;
}
