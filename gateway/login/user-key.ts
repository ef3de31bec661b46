/** The API key as which somebody acts who has signed in: limits, budget and models are those of the key. */
import { type ApiKey, generateKeyId, type KeyStore, type Ledger } from '../../ledger/index.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { KeySettings } from '../../spec/key-settings.ts';
import type { LoginRole, LoginSettings } from '../../spec/login-settings.ts';
import { printableName } from '../../spec/printable-name.ts';

export interface UserKeyServices {
  keys: KeyStore;
  ledger: Ledger;
  new_user: LoginSettings['new_user'];
}

/**
 * The oldest valid key of a user that was not made from another, or a new one for who has none. Who has keys and no
 * valid one gets none: neither a block nor a budget can be shed by signing in.
 *
 * @throws E_LOGIN_KEY, E_KEY_FOLDER, E_LEDGER_*
 */
export async function keyOfUser(user: string, { keys, ledger, new_user }: UserKeyServices): Promise<ApiKey> {
  await keys.refresh();
  const own = keys
    .list()
    .filter(({ parent_id, settings, name }) => parent_id === undefined && (settings.user ?? name) === user);
  const valid = own.find(isValid);
  if (valid) return valid;
  if (own.length > 0)
    throw new HpcserveError('E_LOGIN_KEY', {
      what: `no key of ${printableName(user)} is valid`,
      because: `${own.length === 1 ? 'the only one is' : `all ${own.length} are`} blocked, revoked or expired`,
    });
  const settings = settingsOf(user, new_user);
  // Noted first: no key is valid of which nobody knows who made it.
  const id = generateKeyId();
  ledger.audit({ actor: 'login', action: 'create', subject: id, details: { name: user, settings } });
  return keys.create(user, settings, { id }).key;
}

/** The key of a session, as its role has it; undefined where it is valid no more. */
export function actingKey(key: ApiKey, role: LoginRole): ApiKey | undefined {
  return isValid(key) ? { ...key, settings: { ...key.settings, role } } : undefined;
}

function isValid({ revoked_at_ms, blocked_at_ms, settings: { expires_at_ms } }: ApiKey): boolean {
  if (revoked_at_ms !== undefined || blocked_at_ms !== undefined) return false;
  return expires_at_ms === undefined || Date.now() < expires_at_ms;
}

function settingsOf(
  user: string,
  { budget_tokens, budget_window, ...limits }: LoginSettings['new_user'],
): KeySettings {
  const settings: KeySettings = { user, ...limits };
  if (budget_tokens !== undefined) settings.budget = { tokens: budget_tokens, window: budget_window };
  return settings;
}
