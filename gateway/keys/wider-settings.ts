/** What one key may do and another may not; pure. */
import { type KeySettings, privateCacheGroup } from '../../spec/key-settings.ts';

/** What is not named in one of these, a key may not use; absent: it may use all. */
const lists = ['models', 'providers', 'tiers'] as const;
/** Absent: without limit. */
const bounds = [
  'requests_per_minute',
  'tokens_per_minute',
  'concurrent_requests',
  'body_bytes_max',
  'expires_at_ms',
] as const;

/** By which settings a key may do more than another; none: by no setting. Roles are for who asks. */
export function widerSettings(settings: KeySettings, than: KeySettings): (keyof KeySettings)[] {
  const wider: (keyof KeySettings)[] = [];
  for (const name of lists) if (!isWithin<string>(settings[name], than[name])) wider.push(name);
  for (const name of bounds) if (isMore(settings[name], than[name])) wider.push(name);
  if (isWiderBudget(settings.budget, than.budget)) wider.push('budget');
  const { cache_group } = settings;
  // Of a group of its own it meets nobody's prompts.
  if (cache_group !== than.cache_group && cache_group !== privateCacheGroup) wider.push('cache_group');
  // Absent: it is told of no devices.
  if (!isWithin(settings.provides ?? [], than.provides ?? [])) wider.push('provides');
  return wider;
}

function isWithin<T>(named: readonly T[] | undefined, allowed: readonly T[] | undefined): boolean {
  if (allowed === undefined) return true;
  return named?.every((one) => allowed.includes(one)) ?? false;
}

function isMore(value: number | undefined, than = Number.POSITIVE_INFINITY): boolean {
  return (value ?? Number.POSITIVE_INFINITY) > than;
}

/** Budgets of different windows are not compared: either may allow more than the other. */
function isWiderBudget(budget: KeySettings['budget'], than: KeySettings['budget']): boolean {
  if (than === undefined) return false;
  if (budget?.window !== than.window) return true;
  return isMore(budget.tokens, than.tokens) || isMore(budget.device_s, than.device_s);
}
