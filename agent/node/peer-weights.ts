import { chmodSync, rmSync } from 'node:fs';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { Dispatcher } from 'undici';
import type { Registry, SessionIdentity } from '../../mesh/index.ts';
import type { SessionRecord } from '../../spec/session-record.ts';
import { agentPaths } from '../../spec/wire.ts';
import {
  contentsSchema,
  heldSchema,
  type PeerOffer,
  rangePath,
  tensorRangeOf,
} from '../memory/peers/peer-messages.ts';
import { PeerPools } from './peer-pools.ts';
import { peersToAsk } from './peers-to-ask.ts';

/**
 * Peers that are asked at a time for one load, and all in all: the next ones where something is still missing. Lower:
 * less asking in large meshes; higher: what few nodes have is found more often.
 */
const asked_at_once = 8;
const asked_max = 64;
/** After so long nobody else is asked: who loads waits for the answer, and the last ones may be silent. */
const asking_ms = 3000;
/** A peer that does not say by then what it has is not waited for. */
const offer_ms = 5000;
/** Of an answer without a byte. */
const silence_ms = 2000;
/** Connections to one peer. */
const connections = 4;
/** Of `contents_max` names. */
const body_bytes_max = 2 * 1024 * 1024;
const offer_bytes_max = 1024 * 1024;

interface PeerWeightsOptions {
  registry: Registry;
  /** Of the agent's own session now. */
  own(): SessionIdentity;
  node: string;
  site: string;
  deployment: string;
  /** Names of the models that this node is to serve: who serves them, too, is asked first. */
  models: readonly string[];
}

/**
 * Between the device workers of this node and those of others that have tensors in memory. Workers ask on a unix socket
 * in the agent's private folder; peers are asked over TLS with keys pinned to their session records, like any request.
 */
export class PeerWeights {
  readonly #options: PeerWeightsOptions;
  readonly #server: Server;
  readonly #pools: PeerPools;
  #path: string | undefined;

  constructor(options: PeerWeightsOptions) {
    this.#options = options;
    this.#pools = new PeerPools(options.registry, options.own, connections);
    this.#server = createServer({ keepAliveTimeout: 60_000 }, (request, response) => {
      response.on('error', () => response.destroy()); // a worker that goes is no failure of the agent
      this.#answer(request, response).catch(() => {
        // The worker reads from its file instead, and says why.
        if (response.headersSent) response.destroy();
        else response.writeHead(502).end();
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
    if (request.method === 'POST' && path === '/offers') {
      const { contents } = contentsSchema.parse(JSON.parse(await readAll(request, body_bytes_max)));
      response.writeHead(200, { 'content-type': 'application/json' });
      response.end(JSON.stringify({ peers: await this.#offers(contents) }));
      return;
    }
    request.resume();
    const [, session_id = ''] = /^\/peers\/([0-9a-f]{32})\//.exec(path) ?? [];
    const range = tensorRangeOf(path, `/peers/${session_id}/`);
    const peer = this.#options.registry.get(session_id);
    if (!range || !peer || peer.lifecycle === 'LEFT') {
      response.writeHead(404).end();
      return;
    }
    const asked = { method: 'GET', path: rangePath(`${agentPaths.tensors}/`, range) } as const;
    const pool = await this.#pools.to(peer);
    await pool.stream({ ...asked, opaque: response, ...patience }, ({ statusCode, opaque }) => {
      const answer = opaque as ServerResponse;
      answer.writeHead(statusCode);
      return answer;
    });
  }

  async #offers(contents: readonly string[]): Promise<PeerOffer[]> {
    const body = JSON.stringify({ contents });
    const { registry, own, ...around } = this.#options;
    const own_id = own().session_id;
    const peers = peersToAsk(registry.snapshot(), { ...around, own_id }).slice(0, asked_max);
    const missing = new Set(contents.keys());
    const offers: PeerOffer[] = [];
    const began_ms = performance.now();
    while (peers.length > 0 && missing.size > 0 && performance.now() - began_ms < asking_ms) {
      const asked = peers.splice(0, asked_at_once).map((peer) => this.#offerOf(peer, body));
      for (const offer of await Promise.all(asked)) {
        if (!offer || offer.held.length === 0) continue;
        offers.push(offer);
        for (const index of offer.held) missing.delete(index);
      }
    }
    return offers;
  }

  /** @returns undefined where it does not answer as it should: then it has nothing */
  async #offerOf(peer: SessionRecord, body: string): Promise<PeerOffer | undefined> {
    try {
      const pool = await this.#pools.to(peer);
      const { statusCode, body: answer } = await pool.request({
        method: 'POST',
        path: agentPaths.tensors,
        headers: { 'content-type': 'application/json' },
        body,
        signal: AbortSignal.timeout(offer_ms),
      });
      const text = await readAll(answer, offer_bytes_max);
      if (statusCode !== 200) return undefined;
      const { held } = heldSchema.parse(JSON.parse(text));
      return { session_id: peer.session_id, node: peer.metadata.node, held };
    } catch {
      return undefined;
    }
  }
}

const patience: Pick<Dispatcher.RequestOptions, 'headersTimeout' | 'bodyTimeout'> = {
  headersTimeout: silence_ms,
  bodyTimeout: silence_ms,
};

async function readAll(stream: AsyncIterable<Buffer>, bytes_max: number): Promise<string> {
  const chunks: Buffer[] = [];
  let bytes = 0;
  for await (const chunk of stream) {
    bytes += chunk.length;
    if (bytes > bytes_max) throw new Error(`more than ${bytes_max} bytes came`);
    chunks.push(chunk);
  }
  return Buffer.concat(chunks).toString('utf8');
}
