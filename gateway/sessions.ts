import type { Registry, RegistryChange, RelayFallback, SessionIdentity } from '../mesh/index.ts';
import type { Heartbeat } from '../spec/agent-state.ts';
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
  /** Is told what a session says that its engine's KV cache holds: as it came, unread. */
  onBlocks: (session_id: string, news: unknown) => void = () => undefined;
  readonly #links = new Map<string, SessionLink>();
  readonly #gateways = new Set<string>();
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

  /** Gateways of the mesh that serve, one at least: this one may not have said so yet. */
  get gateways(): number {
    return Math.max(1, this.#gateways.size);
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
      else {
        this.#gateways.delete(change.session_id);
        this.#drop(change.session_id);
      }
    }
  }

  #take(record: SessionRecord): void {
    if (record.metadata.role === 'gateway' && record.lifecycle === 'SERVING')
      this.#gateways.add(record.session_id);
    else this.#gateways.delete(record.session_id);
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
          if (this.#links.get(record.session_id) === from) this.#heard(record.session_id, heartbeat);
        },
      });
      this.#links.set(record.session_id, link);
    }
    this.table.set(record, link);
  }

  #heard(session_id: string, { models, kv_blocks }: Heartbeat): void {
    this.table.report(session_id, models);
    if (kv_blocks !== undefined) this.onBlocks(session_id, kv_blocks);
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
