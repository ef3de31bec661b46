/** What claims of a provider say of a user here. */
import { HpcserveError } from '../../spec/errors/error.ts';
import { type LoginRole, type LoginSettings, loginRoles } from '../../spec/login-settings.ts';
import { printableName } from '../../spec/printable-name.ts';

type Claims = Readonly<Record<string, unknown>>;

/** As long as the name of a key's user may be. */
const name_characters_max = 128;

/** A claim by its name, which may have dots of its own, or by a path of names. */
function claimOf(claims: Claims, name: string): unknown {
  if (Object.hasOwn(claims, name)) return claims[name];
  let value: unknown = claims;
  for (const part of name.split('.')) {
    if (typeof value !== 'object' || value === null || !Object.hasOwn(value, part)) return undefined;
    value = (value as Claims)[part];
  }
  return value;
}

export function hasClaim(claims: Claims, name: string): boolean {
  return claimOf(claims, name) !== undefined;
}

/** The name under which somebody uses models, keys and budgets. @throws E_LOGIN_CLAIM */
export function userOf(claims: Claims, { user_claim }: Pick<LoginSettings, 'user_claim'>): string {
  const refuse = (because: string): HpcserveError =>
    new HpcserveError('E_LOGIN_CLAIM', { what: 'the provider does not say who has signed in', because });
  const value = claimOf(claims, user_claim);
  if (value === undefined) throw refuse(`there is no claim ${user_claim}`);
  if (typeof value !== 'string') throw refuse(`the claim ${user_claim} is no text`);
  const user = value.trim();
  if (user === '') throw refuse(`the claim ${user_claim} is empty`);
  if (user.length > name_characters_max || user !== printableName(user))
    throw refuse(
      `the claim ${user_claim} is longer than ${name_characters_max} characters, or some cannot be shown`,
    );
  if (user_claim === 'email' && claims.email_verified !== true)
    throw refuse('the provider has not verified this e-mail address (email_verified)');
  return user;
}

/** The highest role that one of somebody's groups gives. @throws E_LOGIN_ROLE */
export function roleOf(
  claims: Claims,
  { role_claim, roles, default_role }: Pick<LoginSettings, 'role_claim' | 'roles' | 'default_role'>,
): LoginRole {
  const groups = role_claim === undefined ? [] : [claimOf(claims, role_claim)].flat();
  const role = loginRoles.findLast((each) => roles[each].some((group) => groups.includes(group)));
  if (role !== undefined) return role;
  if (default_role === 'user') return 'user';
  throw new HpcserveError('E_LOGIN_ROLE', {
    what: 'who has signed in may not use this gateway',
    because:
      role_claim === undefined
        ? 'no claim with groups is configured, and who is in none is refused'
        : `the claim ${role_claim} names no group with a role here`,
  });
}
