import { type IncomingMessage, request } from 'node:http';
import type { Upstream } from './serving-process.ts';

/** Largest answer of `fetchText`; metrics of the largest engines are some hundred KiB. */
const answer_bytes_max = 4 * 1024 * 1024;

/** Connection options of `http.request` for an engine on this host. */
export function connectionTo(upstream: Upstream): { socketPath: string } | { host: string; port: number } {
  return upstream.kind === 'socket'
    ? { socketPath: upstream.path }
    : { host: '127.0.0.1', port: upstream.port };
}

/** Status and text of a small GET to an engine on this host. Rejects as `http.request` does, and after `timeout_ms`. */
export function fetchText(
  upstream: Upstream,
  path: string,
  timeout_ms: number,
): Promise<{ status: number; text: string }> {
  return new Promise((resolve, reject) => {
    const asked = request({
      ...connectionTo(upstream),
      path,
      agent: false,
      headers: {
        host: 'localhost',
        ...(upstream.key === undefined ? {} : { authorization: `Bearer ${upstream.key}` }),
      },
      signal: AbortSignal.timeout(timeout_ms),
    });
    asked.once('error', reject);
    asked.once('response', (response: IncomingMessage) => {
      const chunks: Buffer[] = [];
      let length = 0;
      response.on('data', (chunk: Buffer) => {
        length += chunk.length;
        if (length > answer_bytes_max) response.destroy(new Error('the answer is too large'));
        else chunks.push(chunk);
      });
      response.once('error', reject);
      response.once('end', () =>
        resolve({ status: response.statusCode ?? 0, text: Buffer.concat(chunks).toString('utf8') }),
      );
    });
    asked.end();
  });
}
