import { hash } from 'node:crypto';

/** Paths whose requests have `cache_salt`. */
export const salted_paths: ReadonlySet<string> = new Set(['/v1/chat/completions', '/v1/completions']);

/**
 * The body with a salt for the engine's prefix cache. It is the last of its members: where a client names one itself,
 * the last counts. Nobody can guess it who does not know the engine's key.
 */
export function withCacheSalt(body: Buffer, scope: string, engine_key: string): Buffer {
  let end = body.length - 1;
  while (end >= 0 && (body[end] === 0x20 || (body[end]! >= 0x09 && body[end]! <= 0x0d))) end--;
  // Whatever else it is, the engine refuses it.
  if (body[end] !== 0x7d) return body;
  const salt = hash('sha256', `${engine_key} ${scope}`, 'hex');
  return Buffer.concat([body.subarray(0, end), Buffer.from(`,"cache_salt":"${salt}"}`)]);
}
