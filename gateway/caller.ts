/** Who asks a path that is not a replica's, and what that allows. */
import { createHash, timingSafeEqual } from 'node:crypto';
import type { IncomingMessage } from 'node:http';
import { type ApiKey, type KeyStore, limitsKeyOf } from '../ledger/index.ts';
import { HpcserveError } from '../spec/errors/error.ts';
import { printableName } from '../spec/printable-name.ts';
import { bearerOf } from './bearer.ts';
import { type KeyServices, keyError, lookForKey } from './openai-handler.ts';

/** The operator has no key where the admin token was shown. */
export type Caller = { role: 'operator'; key?: ApiKey } | { role: 'user' | 'provider'; key: ApiKey };

/** Compares hashes, so that the time it takes says nothing about the token. */
export function isAdmin(request: IncomingMessage, token: string): boolean {
  const sent = bearerOf(request);
  if (sent === undefined) return false;
  const digest = (text: string): Buffer => createHash('sha256').update(text).digest();
  return timingSafeEqual(digest(sent), digest(token));
}

/** Who may ask: with a key, in a session of the dashboard, or with the operator's token. */
export interface CallerServices extends KeyServices {
  keys: KeyStore;
  admin_token: string;
}

/** @throws E_REQUEST_KEY, E_LOGIN_SESSION, E_LOGIN_ORIGIN */
export async function callerOf(request: IncomingMessage, services: CallerServices): Promise<Caller> {
  if (isAdmin(request, services.admin_token)) return { role: 'operator' };
  const key = await lookForKey(request, services);
  if (!key) throw keyError(request);
  return { role: key.settings.role ?? 'user', key };
}

/** @throws E_REQUEST_ADMIN, E_LOGIN_SESSION, E_LOGIN_ORIGIN */
export async function requireOperator(request: IncomingMessage, services: CallerServices): Promise<Caller> {
  if (isAdmin(request, services.admin_token)) return { role: 'operator' };
  const key = await lookForKey(request, services);
  if (key?.settings.role === 'operator') return { role: 'operator', key };
  throw new HpcserveError('E_REQUEST_ADMIN', {
    what: 'this path is for the operator of the gateway',
    because:
      bearerOf(request) === undefined
        ? 'the request carries no token'
        : key
          ? `the key ${printableName(key.name)} has not the role operator`
          : 'its token is not the admin token',
  });
}

/** What the audit log calls it. */
export function actorOf(caller: Caller): string {
  return caller.key?.id ?? 'operator';
}

/**
 * Ids of the keys that a key's user may see: those that say they are of the same user, and those with the same limits
 * (the key it was derived from, and what else was).
 */
export function ownKeys(key: ApiKey, keys: KeyStore): string[] {
  const { user } = key.settings;
  const limits_key = limitsKeyOf(key);
  return keys
    .list()
    .filter(
      (other) =>
        limitsKeyOf(other) === limits_key ||
        (user !== undefined && rootOf(other, keys).settings.user === user),
    )
    .map(({ id }) => id);
}

/** The key whose limits count, and whose user it is; itself where that is not known any more. */
function rootOf(key: ApiKey, keys: KeyStore): ApiKey {
  return keys.list().find(({ id }) => id === key.parent_id) ?? key;
}
