import type { IncomingMessage } from 'node:http';
import { HpcserveError } from '../../../spec/errors/error.ts';
import { limits } from '../../../spec/wire.ts';
import { jsonSize } from '../../text/json-size.ts';
import { invalid, type Json } from '../requests/body-reader.ts';

/**
 * Bytes of a body for a model with a context of so many tokens: as much text as fills it, written with escapes, and
 * room for lists of prompts, tools and schemas. Lower: less time of the thread that writes everybody's answers; higher:
 * longer lists of prompts in a request.
 */
const body_bytes_base = 8 * 1024 * 1024;
const body_bytes_per_token = 64;
/**
 * Values that a body may hold. Reading takes about 1 µs an object or text and 50 ns a number, while nobody's answer is
 * written. Lower: shorter pauses; higher: more messages, and more prompts of token ids.
 */
const containers_max = 100_000;
const strings_max = 300_000;
const members_max = 2_500_000;
/** Lists and objects in each other. Lower: refuses more; higher: schemas and tools that nobody writes. */
const depth_max = 500;

/** Largest body that is read for a model, bytes. */
export function largestBody_bytes(context_tokens: number): number {
  return Math.min(limits.body_bytes, body_bytes_base + body_bytes_per_token * context_tokens);
}

/**
 * A body that is too large for the model is taken to its end all the same, and dropped: whoever is still writing when
 * the answer comes and the connection closes may never see the answer.
 * @throws HpcserveError E_REQUEST_TOO_LARGE, E_REQUEST_INVALID
 */
export async function readJson(request: IncomingMessage, body_bytes_max: number): Promise<Json> {
  const declared = Number(request.headers['content-length'] ?? 0);
  const chunks: Buffer[] = [];
  let bytes = 0;
  if (declared <= limits.body_bytes)
    for await (const chunk of request as AsyncIterable<Buffer>) {
      bytes += chunk.length;
      if (bytes > limits.body_bytes) break;
      if (bytes <= body_bytes_max && declared <= body_bytes_max) chunks.push(chunk);
      else chunks.length = 0;
    }
  if (Math.max(bytes, declared) > body_bytes_max) tooLarge(`it is larger than ${body_bytes_max} bytes`);
  if (bytes === 0) invalid(null, 'is empty');
  const body = Buffer.concat(chunks);
  checkSize(body);
  try {
    return JSON.parse(body.toString('utf8')) as Json;
  } catch (error) {
    return invalid(null, `is not valid JSON: ${error instanceof Error ? error.message : String(error)}`);
  }
}

function checkSize(body: Uint8Array): void {
  const { containers, strings, members, depth } = jsonSize(body);
  if (depth > depth_max) invalid(null, `is nested ${depth} deep, of at most ${depth_max}`);
  if (containers > containers_max)
    tooLarge(`it holds ${containers} objects and lists, of at most ${containers_max}`);
  if (strings > strings_max) tooLarge(`it holds ${strings} texts and names, of at most ${strings_max}`);
  if (members > members_max) tooLarge(`it holds ${members} values, of at most ${members_max}`);
}

function tooLarge(because: string): never {
  throw new HpcserveError('E_REQUEST_TOO_LARGE', { what: 'The request body is too large', because });
}
