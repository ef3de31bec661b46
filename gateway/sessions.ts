import type { Registry, RegistryChange, RelayFallback, SessionIdentity } from '../mesh/index.ts';
import type { SessionRecord } from '../spec/session-record.ts';
import type { GatewayLog } from './log.ts';
import { RoutingTable } from './routing/table.ts';
import { SessionLink } from './session-link.ts';

/** How long answers of a session that left may still take. */
const leave_ms = 30_000;

/** Where sessions are heard of: the mesh, or the process that is its member. */
type KnownSessions = Pick<Registry, 'snapshot' | 'onChange'>;

/** Follows the registry: a link and rows of the routing table for every session that serves models. */
export class Sessions {
  readonly table = new RoutingTable<SessionLink>();
  readonly #links = new Map<string, SessionLink>();
  readonly #registry: KnownSessions;
  readonly #identity: () => SessionIdentity;
  readonly #log: GatewayLog;
  readonly #relayFallback: RelayFallback;
  readonly #unsubscribe: () => void;

  /** @param identity what the gateway shows to sessions; asked for each new link, since it may be renewed */
  constructor(
    registry: KnownSessions,
    identity: () => SessionIdentity,
    log: GatewayLog,
    relayFallback: RelayFallback,
  ) {
    this.#registry = registry;
    this.#identity = identity;
    this.#log = log;
    this.#relayFallback = relayFallback;
    this.#unsubscribe = registry.onChange((changes) => this.#changed(changes));
    for (const record of registry.snapshot()) this.#take(record);
  }

  async close(): Promise<void> {
    this.#unsubscribe();
    await Promise.all([...this.#links.values()].map((link) => link.close()));
    this.#links.clear();
  }

  /** The way to a session that has not left. */
  link(session_id: string): SessionLink | undefined {
    return this.#links.get(session_id);
  }

  /** Opens every link anew: the gateway has a new identity, which the sessions know by now or soon will. */
  relink(): void {
    for (const [session_id, link] of this.#links) {
      this.table.remove(session_id);
      void link.finish(leave_ms);
    }
    this.#links.clear();
    for (const record of this.#registry.snapshot()) this.#take(record);
  }

  #changed(changes: readonly RegistryChange[]): void {
    for (const change of changes) {
      if (change.after) this.#take(change.after);
      else this.#drop(change.session_id);
    }
  }

  #take(record: SessionRecord): void {
    if (!servesModels(record)) return;
    if (record.lifecycle === 'LEFT') {
      this.#drop(record.session_id);
      return;
    }
    let link = this.#links.get(record.session_id);
    if (link && !sameAddresses(link.record, record)) {
      void link.finish(leave_ms);
      this.table.setReachable(record.session_id, false);
      link = undefined;
    }
    if (link) {
      link.record = record;
    } else {
      link = new SessionLink(record, this.#identity(), this.#relayFallback, {
        up: (up) => {
          this.#log.info({ session: record.session_id, node: record.metadata.node }, 'session reachable');
          if (this.#links.get(record.session_id) === up) this.table.setReachable(record.session_id, true);
        },
        down: (down, reason) => {
          this.#log.warn(
            { session: record.session_id, node: record.metadata.node, reason },
            'session unreachable',
          );
          if (this.#links.get(record.session_id) === down) this.table.setReachable(record.session_id, false);
        },
        heartbeat: (from, heartbeat) => {
          if (this.#links.get(record.session_id) === from)
            this.table.report(record.session_id, heartbeat.models);
        },
      });
      this.#links.set(record.session_id, link);
    }
    this.table.set(record, link);
  }

  #drop(session_id: string): void {
    const link = this.#links.get(session_id);
    if (!link) return;
    this.#links.delete(session_id);
    this.table.remove(session_id);
    this.#log.info({ session: session_id, node: link.record.metadata.node }, 'session left');
    void link.finish(leave_ms);
  }
}

function sameAddresses(a: SessionRecord, b: SessionRecord): boolean {
  const list = (record: SessionRecord): string =>
    record.metadata.addresses.map(({ host, port }) => `${host} ${port}`).join();
  return list(a) === list(b);
}

function servesModels(record: SessionRecord): boolean {
  return record.metadata.role === 'device-worker' || record.metadata.role === 'engine';
}
