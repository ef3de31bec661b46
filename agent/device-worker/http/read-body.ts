import type { IncomingMessage } from 'node:http';
import { HpcserveError } from '../../../spec/errors/error.ts';
import { limits } from '../../../spec/wire.ts';
import { invalid, type Json } from '../requests/body-reader.ts';

/** @throws HpcserveError E_REQUEST_TOO_LARGE, E_REQUEST_INVALID */
export async function readJson(request: IncomingMessage): Promise<Json> {
  const declared = Number(request.headers['content-length'] ?? 0);
  if (declared > limits.body_bytes) tooLarge();
  const chunks: Buffer[] = [];
  let bytes = 0;
  for await (const chunk of request as AsyncIterable<Buffer>) {
    bytes += chunk.length;
    if (bytes > limits.body_bytes) tooLarge();
    chunks.push(chunk);
  }
  if (bytes === 0) invalid(null, 'is empty');
  try {
    return JSON.parse(Buffer.concat(chunks).toString('utf8')) as Json;
  } catch (error) {
    return invalid(null, `is not valid JSON: ${error instanceof Error ? error.message : String(error)}`);
  }
}

function tooLarge(): never {
  throw new HpcserveError('E_REQUEST_TOO_LARGE', {
    what: `The request body is larger than ${limits.body_bytes} bytes`,
  });
}
