import type { Lifecycle, SessionMetadata, SessionRecord } from '../spec/session-record.ts';
import type { Credential } from './credential.ts';
import type { Delegation } from './delegation.ts';
import type { RecordMark } from './record-codec.ts';
import type { Registry } from './registry.ts';
import { SessionIdentity } from './session-identity.ts';

/**
 * Renewals within `renewals_ms` after which a session takes no more part in the gossip: it lives, but the others cannot
 * reach it (its network lets no connections through); its folder and the gateways' watch streams then do the work.
 */
const renewals_max = 3;
const renewals_ms = 600_000;

/** What signs the keys of own sessions now; undefined: they prove no provider. Asked before each publishing. */
export type CurrentDelegation = () => Delegation | undefined;

/**
 * A session of this process: its key, its current record, and the publishing of every change. Where members of the
 * gossip take it for gone though it lives (its node was cut off for a while), a later record shows them that it does;
 * where its end stands in its folder, or it was stopped itself, it comes back under a new id.
 */
export class LocalSession {
  readonly #registry: Registry;
  readonly #onRenewed: (previousId: string) => void;
  readonly #delegation: CurrentDelegation;
  #certified: { by: Delegation; identity: SessionIdentity; credential: Credential } | undefined;
  readonly #unsubscribe: () => void;
  /** When it was renewed, ms. */
  #renewals: number[] = [];
  #identity: SessionIdentity;
  #record: SessionRecord;

  private constructor(
    registry: Registry,
    identity: SessionIdentity,
    record: SessionRecord,
    onRenewed: (previousId: string) => void,
    delegation: CurrentDelegation,
  ) {
    this.#registry = registry;
    this.#delegation = delegation;
    this.#identity = identity;
    this.#record = record;
    this.#onRenewed = onRenewed;
    const stopListening = registry.onChange((changes) => {
      const isTakenForGone = changes.some((change) => {
        return change.session_id === this.id && change.after?.lifecycle === 'LEFT';
      });
      if (isTakenForGone && this.#record.lifecycle !== 'LEFT') {
        this.#renew().catch((error: unknown) => process.emitWarning(error as Error));
      }
    });
    const stopFollowing = registry.onPeer(() => {
      if (this.#record.lifecycle === 'LEFT') return;
      this.update({}).catch((error: unknown) => process.emitWarning(error as Error));
    });
    const stopRefuting = registry.onDisputed((session_id, seen) => {
      if (session_id !== this.id) return;
      this.#refute(seen).catch((error: unknown) => process.emitWarning(error as Error));
    });
    this.#unsubscribe = () => {
      stopListening();
      stopRefuting();
      stopFollowing();
    };
  }

  /** Publishes a new session with lifecycle JOIN. `onRenewed` runs when it has taken a new id. */
  static async join(
    registry: Registry,
    metadata: SessionMetadata,
    onRenewed: (previousId: string) => void = () => undefined,
    delegation: CurrentDelegation = () => undefined,
  ): Promise<LocalSession> {
    const identity = await SessionIdentity.create();
    const first = firstRecord(identity, metadata);
    const session = new LocalSession(registry, identity, first, onRenewed, delegation);
    session.#record = session.#named(session.#record);
    await session.#publish();
    return session;
  }

  get id(): string {
    return this.#identity.session_id;
  }

  get identity(): SessionIdentity {
    return this.#identity;
  }

  get record(): SessionRecord {
    return this.#record;
  }

  /**
   * Publishes a change of lifecycle, metadata or both; what is not given stays. Resolves as `Registry.publish`.
   * A lifecycle never goes back: a unit that starts again is a new session.
   */
  async update(change: { lifecycle?: Lifecycle; metadata?: Partial<SessionMetadata> }): Promise<void> {
    const lifecycle = change.lifecycle ?? this.#record.lifecycle;
    this.#record = this.#named({
      ...this.#record,
      lifecycle,
      version: lifecycle === this.#record.lifecycle ? this.#record.version + 1 : 0,
      metadata: { ...this.#record.metadata, ...change.metadata },
    });
    await this.#publish();
  }

  /** Publishes LEFT, with no models and no addresses, and stops listening to the registry. */
  async leave(): Promise<void> {
    this.#unsubscribe();
    if (this.#record.lifecycle === 'LEFT') return;
    await this.update({ lifecycle: 'LEFT', metadata: { models: [], addresses: [] } });
  }

  /** A record later than the one that is taken for the last. */
  async #refute(seen: RecordMark): Promise<void> {
    const { lifecycle, version } = this.#record;
    if (lifecycle === 'LEFT' || seen.lifecycle !== lifecycle || seen.version < version) return;
    this.#record = this.#named({ ...this.#record, version: seen.version + 1 });
    await this.#publish();
  }

  async #renew(): Promise<void> {
    const previous = this.id;
    const { lifecycle, metadata } = this.#record;
    const identity = await SessionIdentity.create();
    this.#identity = identity;
    const now_ms = performance.now();
    this.#renewals = [...this.#renewals.filter((at_ms) => now_ms - at_ms < renewals_ms), now_ms];
    this.#record = this.#named({ ...firstRecord(identity, metadata), lifecycle });
    this.#onRenewed(previous);
    await this.#publish();
  }

  async #publish(): Promise<void> {
    await this.#registry.publish(this.#record, this.#identity, this.#credential());
  }

  #credential(): Credential | undefined {
    const by = this.#delegation();
    if (!by) return undefined;
    if (this.#certified?.by !== by || this.#certified.identity !== this.#identity) {
      const credential = by.certify(this.#identity.public_key);
      this.#certified = { by, identity: this.#identity, credential };
    }
    return this.#certified.credential;
  }

  /** With the name of the peer that speaks for it, and of the provider that vouches for it. */
  #named(record: SessionRecord): SessionRecord {
    const { peer: _, ...described } = record.metadata;
    const name = this.#delegation()?.statement.name;
    const metadata = name === undefined ? described : { ...described, provider: name };
    const { peer } = this.#registry;
    const speaks = peer !== undefined && this.#renewals.length < renewals_max;
    return { ...record, metadata: speaks ? { ...metadata, peer } : metadata };
  }
}

function firstRecord(identity: SessionIdentity, metadata: SessionMetadata): SessionRecord {
  return {
    session_id: identity.session_id,
    public_key: Buffer.from(identity.public_key).toString('base64'),
    lifecycle: 'JOIN',
    version: 0,
    started_at_ms: Date.now(),
    metadata,
  };
}
