import type { IncomingMessage } from 'node:http';

const bearer = 'Bearer ';

/**
 * The token of an `authorization: Bearer` header; the scheme's name is case-insensitive (RFC 9110 §11.1). Without one,
 * that of Anthropic's clients or of Azure's.
 */
export function bearerOf(request: IncomingMessage): string | undefined {
  const { authorization } = request.headers;
  if (authorization === undefined) {
    const other = request.headers['x-api-key'] ?? request.headers['api-key'];
    return typeof other === 'string' && other !== '' ? other : undefined;
  }
  if (authorization.startsWith(bearer)) return authorization.slice(bearer.length).trim();
  return /^bearer +(\S+) *$/i.exec(authorization)?.[1];
}
