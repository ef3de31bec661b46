import { Agent, type IncomingMessage, type OutgoingHttpHeaders, request } from 'node:http';
import type { Duplex } from 'node:stream';
import { connectToOwnPort } from './engine-socket.ts';
import type { Upstream } from './serving-process.ts';

/** Largest answer of `fetchText`; metrics of the largest engines are some hundred KiB. */
const answer_bytes_max = 4 * 1024 * 1024;

/**
 * A connection a request: on this host that is cheap, and no request meets one that is being closed. Engines are
 * asked to keep it open all the same: one that answers and closes before the end of the request was written would
 * break the writing, and its answer would be lost with the connection.
 */
class OneRequestAgent extends Agent {
  constructor() {
    super({ keepAlive: true });
  }

  // `maxFreeSockets: 0` would not do: to Node it is the default, 256.
  override keepSocketAlive(): boolean {
    return false;
  }
}

/** Connections to loopback ports of engines, which are nobody else's. */
class OwnPortAgent extends OneRequestAgent {
  override createConnection(
    { port }: { port?: number },
    created: (error: Error | null, socket: Duplex) => void,
  ): undefined {
    connectToOwnPort(Number(port), {}, created);
  }
}

const bySocket = new OneRequestAgent();
const byPort = new OwnPortAgent();

/** Connection options of `http.request` for an engine on this host. */
export function connectionTo(
  upstream: Upstream,
): { agent: Agent; socketPath: string } | { agent: Agent; host: string; port: number } {
  return upstream.kind === 'socket'
    ? { agent: bySocket, socketPath: upstream.path }
    : { agent: byPort, host: '127.0.0.1', port: upstream.port };
}

/**
 * Status and text of a small request to an engine on this host. Rejects as `http.request` does, and after `timeout_ms`.
 */
export function fetchText(
  upstream: Upstream,
  path: string,
  timeout_ms: number,
  method: 'GET' | 'POST' = 'GET',
): Promise<{ status: number; text: string }> {
  return ask(upstream, { method, path }, timeout_ms);
}

/** Status of the answer to a small JSON body. Rejects as `fetchText` does. */
export async function postJson(
  upstream: Upstream,
  path: string,
  body: object,
  timeout_ms: number,
): Promise<number> {
  const asked = { method: 'POST', path, body: JSON.stringify(body) };
  return (await ask(upstream, asked, timeout_ms)).status;
}

function ask(
  upstream: Upstream,
  { method, path, body }: { method: string; path: string; body?: string },
  timeout_ms: number,
): Promise<{ status: number; text: string }> {
  return new Promise((resolve, reject) => {
    const headers: OutgoingHttpHeaders = { host: 'localhost' };
    if (upstream.key !== undefined) headers.authorization = `Bearer ${upstream.key}`;
    if (body !== undefined) {
      headers['content-type'] = 'application/json';
      headers['content-length'] = Buffer.byteLength(body);
    }
    const asked = request({
      ...connectionTo(upstream),
      method,
      path,
      headers,
      signal: AbortSignal.timeout(timeout_ms),
    });
    asked.on('error', reject);
    asked.once('response', (response: IncomingMessage) => {
      const chunks: Buffer[] = [];
      let length = 0;
      response.on('data', (chunk: Buffer) => {
        length += chunk.length;
        if (length > answer_bytes_max) response.destroy(new Error('the answer is too large'));
        else chunks.push(chunk);
      });
      response.on('error', reject);
      response.once('end', () =>
        resolve({ status: response.statusCode ?? 0, text: Buffer.concat(chunks).toString('utf8') }),
      );
    });
    asked.end(body);
  });
}
