import { chmodSync, rmSync } from 'node:fs';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import { pipeline } from 'node:stream';
import type { Registry, SessionIdentity } from '../../mesh/index.ts';
import { provenProviderOf, type SessionRecord } from '../../spec/session-record.ts';
import { agentPaths } from '../../spec/wire.ts';
import { type KvPeerList, kvPeerPath } from '../transfer/agent-paths.ts';
import { PeerPools } from './peer-pools.ts';

/** To one peer: messages of several workers and models do not wait for one another. */
const connections = 8;
/** A peer that answers nothing in so long is given up; workers that ask set their own limits, which are shorter. */
const answer_ms = 120_000;

interface KvPeersOptions {
  registry: Registry;
  /** Of the agent's own session now. */
  own(): SessionIdentity;
  hostname: string;
  /** Fingerprint of the own provider; undefined while nothing proves it: then there are no peers. */
  provider(): string | undefined;
}

/**
 * Between device workers of this node and those that answers can move to, with keys and values. Workers ask on a unix
 * socket in the agent's private folder who there is; what they say to a peer goes over TLS with keys pinned to its
 * record. The keys and values themselves take another way (docs/kv-transfer.md).
 */
export class KvPeers {
  readonly #options: KvPeersOptions;
  readonly #server: Server;
  readonly #pools: PeerPools;
  #path: string | undefined;

  constructor(options: KvPeersOptions) {
    this.#options = options;
    this.#pools = new PeerPools(options.registry, options.own, connections);
    this.#server = createServer({ keepAliveTimeout: 60_000 }, (request, response) => {
      response.on('error', () => response.destroy()); // a worker that goes is no failure of the agent
      this.#answer(request, response).catch((error: Error) => {
        // The worker computes its tokens again elsewhere, and says why.
        if (response.headersSent) response.destroy();
        else response.writeHead(502, { 'content-type': 'text/plain' }).end(error.message);
      });
    });
  }

  /** @param path of the socket, in a folder of mode 0700 */
  async listen(path: string): Promise<void> {
    await new Promise<void>((resolve, reject) => {
      this.#server.once('error', reject);
      this.#server.listen(path, resolve);
    });
    chmodSync(path, 0o600);
    this.#path = path;
  }

  async close(): Promise<void> {
    const closed = new Promise<void>((resolve) => this.#server.close(() => resolve()));
    this.#server.closeAllConnections();
    await closed;
    await this.#pools.close();
    if (this.#path !== undefined) rmSync(this.#path, { force: true });
  }

  async #answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const path = request.url ?? '/';
    const [, session_id] = new RegExp(`^${kvPeerPath}/([0-9a-f]{32})$`).exec(path) ?? [];
    if (request.method === 'GET' && path === kvPeerPath) {
      request.resume();
      response.writeHead(200, { 'content-type': 'application/json' });
      response.end(JSON.stringify({ peers: this.#peers() } satisfies KvPeerList));
      return;
    }
    const peer = this.#candidates().find((record) => record.session_id === session_id);
    if (request.method !== 'POST' || !peer) {
      request.resume();
      response.writeHead(404, { 'content-type': 'text/plain' }).end('there is no such peer');
      return;
    }
    const gone = new AbortController();
    response.once('close', () => gone.abort());
    const pool = await this.#pools.to(peer);
    const answer = await pool.request({
      method: 'POST',
      path: agentPaths.kv,
      headers: { 'content-type': 'application/json' },
      body: request,
      headersTimeout: answer_ms,
      bodyTimeout: answer_ms,
      signal: gone.signal,
    });
    response.writeHead(answer.statusCode, { 'content-type': 'application/json' });
    pipeline(answer.body, response, () => undefined);
  }

  /**
   * Device workers of the own provider, those of this node included. One that has stages behind the first alone serves
   * nothing by itself: it stays in JOIN.
   */
  #candidates(): SessionRecord[] {
    const own = this.#options.provider();
    if (own === undefined) return [];
    const now_ms = Date.now();
    return this.#options.registry
      .snapshot()
      .filter(
        (record) =>
          (record.lifecycle === 'SERVING' || record.lifecycle === 'JOIN') &&
          record.metadata.role === 'device-worker' &&
          record.metadata.addresses.length > 0 &&
          provenProviderOf(record, now_ms) === own,
      );
  }

  #peers(): KvPeerList['peers'] {
    return this.#candidates().map(({ session_id, metadata }) => {
      const serving = metadata.models.filter(({ state }) => state === 'serving');
      return {
        session_id,
        node: metadata.node,
        host: metadata.addresses[0]!.host,
        same_node: metadata.hostname === this.#options.hostname,
        models: serving.map(({ name }) => name),
        decodes: serving.flatMap(({ name, pool }) => (pool === 'decode' ? [name] : [])),
      };
    });
  }
}
