import type { IncomingMessage } from 'node:http';
import { HpcserveError } from '../../spec/errors/error.ts';
import { limits } from '../../spec/wire.ts';

/**
 * All of a request's body. @throws HpcserveError E_AGENT_REQUEST where it is too large; rejects where its sender goes
 * away
 */
export async function readWhole(request: IncomingMessage): Promise<Buffer> {
  if (Number(request.headers['content-length'] ?? 0) > limits.body_bytes) throw bodyTooLarge();
  const chunks: Buffer[] = [];
  let bytes = 0;
  for await (const chunk of request.iterator({ destroyOnReturn: false }) as AsyncIterable<Buffer>) {
    bytes += chunk.length;
    if (bytes > limits.body_bytes) throw bodyTooLarge();
    chunks.push(chunk);
  }
  return Buffer.concat(chunks);
}

export function bodyTooLarge(): HpcserveError {
  return new HpcserveError('E_AGENT_REQUEST', {
    what: `the request body is larger than ${limits.body_bytes} bytes`,
    try: 'send a smaller body',
  });
}
