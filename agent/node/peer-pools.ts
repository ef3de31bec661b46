import type { buildConnector, Pool } from 'undici';
import { pinnedConnector, type Registry, type SessionIdentity, sessionOrigin } from '../../mesh/index.ts';
import type { SessionRecord } from '../../spec/session-record.ts';

/** Connections to sessions of other agents, over TLS with keys pinned to their records. */
export class PeerPools {
  readonly #registry: Registry;
  readonly #own: () => SessionIdentity;
  readonly #connections: number;
  readonly #pools = new Map<string, Pool>();

  /**
   * @param own asked at each connection: an agent may take another session
   * @param connections to one peer
   */
  constructor(registry: Registry, own: () => SessionIdentity, connections: number) {
    this.#registry = registry;
    this.#own = own;
    this.#connections = connections;
  }

  async to(peer: SessionRecord): Promise<Pool> {
    const { session_id } = peer;
    // Not before it is needed: an agent starts sooner without it.
    const { Pool } = await import('undici');
    const known = this.#pools.get(session_id);
    if (known) return known;
    for (const [id, pool] of this.#pools) {
      const record = this.#registry.get(id);
      if (record && record.lifecycle !== 'LEFT') continue;
      this.#pools.delete(id);
      void pool.destroy();
    }
    const connect: buildConnector.connector = (options, callback) =>
      pinnedConnector(peer, this.#own())(options, callback);
    const pool = new Pool(sessionOrigin(peer), { connect, connections: this.#connections });
    this.#pools.set(session_id, pool);
    return pool;
  }

  async close(): Promise<void> {
    await Promise.all([...this.#pools.values()].map((pool) => pool.destroy()));
  }
}
