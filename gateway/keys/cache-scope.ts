import { hash } from 'node:crypto';
import type { ApiKey } from '../../ledger/index.ts';
import { privateCacheGroup } from '../../spec/key-settings.ts';

const scopes = new WeakMap<ApiKey['settings'], string>();

/**
 * Who may meet the prompts of a key in the prefix caches of engines, as `headers.cache_scope` says it: only keys of the
 * same group. Undefined for the group of all keys that name none.
 */
export function cacheScopeOf({ id, settings }: Pick<ApiKey, 'id' | 'settings'>): string | undefined {
  const { cache_group } = settings;
  if (cache_group === undefined) return undefined;
  let scope = scopes.get(settings);
  if (scope === undefined) {
    const name = cache_group === privateCacheGroup ? `key ${id}` : `group ${cache_group}`;
    scope = hash('sha256', name, 'base64url').slice(0, 22);
    scopes.set(settings, scope);
  }
  return scope;
}
