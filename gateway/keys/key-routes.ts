/** Keys over HTTP: all of them for the operator, those of her own for a user. */
import type { FastifyInstance } from 'fastify';
import { z } from 'zod';
import { type ApiKey, generateKeyId, type KeyStore, type Ledger } from '../../ledger/index.ts';
import { parseProviders } from '../../solver/routing/filter.ts';
import { parseQos } from '../../solver/routing/qos.ts';
import type { AuditEntry } from '../../spec/audit.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import {
  derivedSettingsSchema,
  type KeyChanges,
  type KeySettings,
  keyChangesSchema,
  keySettingsSchema,
  narrowedSettings,
} from '../../spec/key-settings.ts';
import { type LoginRole, loginRoles } from '../../spec/login-settings.ts';
import { printableName } from '../../spec/printable-name.ts';
import { actorOf, type Caller, type CallerServices, callerOf, ownKeys, requireOperator } from '../caller.ts';
import type { GatewayLog } from '../log.ts';
import { parseWith } from '../parse-with.ts';
import type { KeyLimits } from './key-limits.ts';
import type { KnownProviders } from './known-providers.ts';
import { widerSettings } from './wider-settings.ts';

export interface KeyServices extends CallerServices {
  keyLimits: KeyLimits;
  ledger: Ledger;
  providers: KnownProviders;
  log: GatewayLog;
}

/** Valid keys that may be derived from one. Lower: less to list; higher: a key for each program. */
const derived_max = 64;
/** An old secret is valid beside a new one for at most 30 days. */
const grace_s_max = 30 * 86_400;
const audit_max = 10_000;

const keyBody = z.strictObject({
  name: z.string().trim().min(1).max(128),
  settings: keySettingsSchema.optional(),
});
const rotateBody = z.strictObject({ grace_s: z.number().min(0).max(grace_s_max).default(0) });
const auditQuery = z.strictObject({ limit: z.coerce.number().int().min(1).max(audit_max).default(100) });

type WithId = { Params: { id: string } };

export function keyRoutes(app: FastifyInstance, services: KeyServices): void {
  const { keys, keyLimits } = services;
  const withSpending = (key: ApiKey): object => ({ ...key, spent: keyLimits.spent(key) });

  app.get('/hpcserve/v1/me', async (request) => {
    const { role, key } = await callerOf(request.raw, services);
    return { role, user: key && (key.settings.user ?? key.name), key: key && withSpending(key) };
  });
  app.get('/hpcserve/v1/keys', async (request) => {
    const caller = await callerOf(request.raw, services);
    await keys.lookForNew();
    const visible = visibleKeys(caller, keys);
    return { keys: keys.list().filter(visible).map(withSpending) };
  });
  app.post('/hpcserve/v1/keys', async (request, reply) => {
    const caller = await callerOf(request.raw, services);
    const { name, settings = {} } = parseWith(keyBody, request.body);
    reply.code(201);
    return createKey(services, caller, name, settings);
  });
  app.patch<WithId>('/hpcserve/v1/keys/:id', async (request) => {
    const caller = await callerOf(request.raw, services);
    const changes = parseWith(keyChangesSchema, request.body);
    const before = await requireVisible(services, caller, request.params.id);
    if (caller.role !== 'operator') {
      requireOwn(caller, before);
      requireDerived(caller, before);
      requireNoWiderParent(services, caller.key, before);
      requireNarrowing(changes);
    }
    const checked = checkedSettings(changes, services.providers);
    note(services, caller, 'change', before, checked);
    return keys.change(before.id, checked);
  });
  app.post<WithId>('/hpcserve/v1/keys/:id/rotate', async (request) => {
    const caller = await callerOf(request.raw, services);
    const { grace_s } = parseWith(rotateBody, request.body);
    const before = await requireVisible(services, caller, request.params.id);
    requireNoMore(services, caller, before);
    note(services, caller, 'rotate', before, { grace_s });
    const { key, secret } = keys.rotate(before.id, 1000 * grace_s);
    return { ...key, key: secret };
  });
  endingRoutes(app, services);
  app.get('/hpcserve/v1/audit', async (request) => {
    await requireOperator(request.raw, services);
    return { audit: services.ledger.audited(parseWith(auditQuery, request.query).limit) };
  });
}

/** What ends a key's validity is done also where it cannot be noted: the log says so. */
function endingRoutes(app: FastifyInstance, services: KeyServices): void {
  const { keys, log } = services;
  const noteIfPossible = (...[caller, action, key]: [Caller, AuditEntry['action'], ApiKey]): void => {
    try {
      note(services, caller, action, key, {});
    } catch (error) {
      log.error({ error, key: key.id, action }, 'what was done with a key cannot be noted in the ledger');
    }
  };
  app.post<WithId>('/hpcserve/v1/keys/:id/block', async (request) => {
    const caller = await callerOf(request.raw, services);
    const before = await requireVisible(services, caller, request.params.id);
    requireOwn(caller, before);
    noteIfPossible(caller, 'block', before);
    return keys.block(before.id);
  });
  app.post<WithId>('/hpcserve/v1/keys/:id/unblock', async (request) => {
    const caller = await requireOperator(request.raw, services);
    const before = await requireVisible(services, caller, request.params.id);
    note(services, caller, 'unblock', before, {});
    return keys.unblock(before.id);
  });
  app.delete<WithId>('/hpcserve/v1/keys/:id', async (request) => {
    const caller = await callerOf(request.raw, services);
    const before = await requireVisible(services, caller, request.params.id);
    requireOwn(caller, before);
    noteIfPossible(caller, 'revoke', before);
    return keys.revoke(before.id);
  });
}

function createKey(services: KeyServices, caller: Caller, name: string, settings: KeySettings): object {
  const { keys, providers } = services;
  let parent_id: string | undefined;
  if (caller.role !== 'operator') {
    requireUnderived(caller.key);
    requireNarrowing(settings);
    parent_id = caller.key.id;
    const derived = keys
      .list()
      .filter((key) => key.parent_id === parent_id && key.revoked_at_ms === undefined);
    if (derived.length >= derived_max)
      throw new HpcserveError('E_KEY_SCOPE', {
        what: `${derived_max} keys are derived from ${parent_id} already`,
        try: 'revoke one that is not needed any more',
      });
  }
  const checked = checkedSettings(settings, providers);
  // Noted first: no key is valid of which nobody knows who made it.
  const id = generateKeyId();
  note(services, caller, 'create', { id, name }, { name, parent_id, settings: checked });
  const { key, secret } = keys.create(name, checked, { id, parent_id });
  return { ...key, key: secret };
}

/** @throws E_LEDGER_WRITE, E_LEDGER_BUSY */
function note(
  { ledger, log }: KeyServices,
  caller: Caller,
  action: AuditEntry['action'],
  key: Pick<ApiKey, 'id' | 'name'>,
  details: AuditEntry['details'],
): void {
  const actor = actorOf(caller);
  ledger.audit({ actor, action, subject: key.id, details });
  log.info({ actor, action, key: key.id, name: key.name }, 'API keys');
}

function visibleKeys(caller: Caller, keys: KeyStore): (key: ApiKey) => boolean {
  if (caller.role === 'operator') return () => true;
  const own = new Set(ownKeys(caller.key, keys));
  return ({ id }) => own.has(id);
}

/** To who may not see it, a key is not there. @throws E_KEY_UNKNOWN */
async function requireVisible({ keys }: KeyServices, caller: Caller, id: string): Promise<ApiKey> {
  await keys.lookForNew();
  const key = keys.get(id);
  if (visibleKeys(caller, keys)(key)) return key;
  throw new HpcserveError('E_KEY_UNKNOWN', { what: `there is no key ${id.slice(0, 64)}` });
}

/**
 * Of what a derived key makes, its parent's limits would hold and its own would not: it would be wider, and outlive it.
 *
 * @throws E_KEY_SCOPE
 */
function requireUnderived({ name, parent_id }: ApiKey): void {
  if (parent_id === undefined) return;
  throw new HpcserveError('E_KEY_SCOPE', {
    what: `the key ${printableName(name)} makes no keys`,
    because: `it was derived from ${parent_id}`,
    try: 'make the key with one that was not derived, or ask the operator of the gateway',
  });
}

/**
 * All keys of its user are visible to a derived key, and those beside it may do more: it ends and changes none of them.
 *
 * @throws E_KEY_SCOPE
 */
function requireOwn(caller: Caller, key: ApiKey): void {
  if (!isOtherOfDerived(caller, key)) return;
  throw new HpcserveError('E_KEY_SCOPE', {
    what: `the key ${printableName(key.name)} is not for one that was derived from another`,
    because: 'a derived key ends and rotates itself alone',
    try: 'ask with a key that was not derived, or the operator of the gateway',
  });
}

function isOtherOfDerived({ role, key: asking }: Caller, key: ApiKey): boolean {
  return role !== 'operator' && asking.parent_id !== undefined && key.id !== asking.id;
}

/** @throws E_KEY_SCOPE */
function requireDerived(caller: Caller, key: ApiKey): void {
  if (key.parent_id !== undefined && key.id !== caller.key?.id) return;
  throw new HpcserveError('E_KEY_SCOPE', {
    what: `the settings of ${printableName(key.name)} are for the operator of the gateway`,
    because: 'a user changes keys that were derived from hers, with another key than the one that is changed',
  });
}

/**
 * What a derived key may do can be widened up to what the key allows that it was derived from: of two keys of one user
 * the narrower changes none of those that the wider one made.
 *
 * @throws E_KEY_SCOPE
 */
function requireNoWiderParent({ keys }: KeyServices, asking: ApiKey, key: ApiKey): void {
  const parent = parentOf(keys, key);
  if (!parent || parent.id === asking.id) return;
  const wider = widerSettings(parent.settings, asking.settings);
  if (wider.length === 0) return;
  throw new HpcserveError('E_KEY_SCOPE', {
    what: `the settings of ${printableName(key.name)} are not for the key ${printableName(asking.name)}`,
    because: `it was derived from ${parent.id}, which may do more: ${wider.join(', ')}`,
    try: `change it with the key ${parent.id}, or ask the operator of the gateway`,
  });
}

/**
 * Who rotates a key is shown its secret: a key that was made from another, has a lesser role or narrower settings must
 * not get at one that may do more.
 *
 * @throws E_KEY_SCOPE
 */
function requireNoMore({ keys }: KeyServices, caller: Caller, key: ApiKey): void {
  if (caller.role === 'operator') return;
  // Also of its own: a session may have a lesser role than the key as which it acts.
  const isAbove = rankOf(key.settings.role) > rankOf(caller.role);
  const wider =
    key.id === caller.key.id ? [] : widerSettings(effectiveSettings(keys, key), caller.key.settings);
  if (!isAbove && !isOtherOfDerived(caller, key) && wider.length === 0) return;
  throw new HpcserveError('E_KEY_SCOPE', {
    what: `the key ${printableName(key.name)} may do more than the one that asks for its secret`,
    because: wider.length > 0 ? `it has wider settings: ${wider.join(', ')}` : undefined,
    try: 'rotate it with the key itself, or ask the operator of the gateway',
  });
}

/** Of a derived key, what it and the key allow that it was derived from. */
function effectiveSettings(keys: KeyStore, key: ApiKey): KeySettings {
  const parent = parentOf(keys, key);
  return parent ? narrowedSettings(parent.settings, key.settings) : key.settings;
}

/** Undefined where it was made from none, or from one of which nothing is known any more. */
function parentOf(keys: KeyStore, { parent_id }: ApiKey): ApiKey | undefined {
  return keys.list().find(({ id }) => id === parent_id);
}

function rankOf(role: LoginRole = 'user'): number {
  return loginRoles.indexOf(role);
}

/** @throws E_KEY_SCOPE */
function requireNarrowing(settings: KeyChanges | KeySettings): void {
  const other = Object.keys(settings).find((name) => !Object.hasOwn(derivedSettingsSchema.shape, name));
  if (other === undefined) return;
  throw new HpcserveError('E_KEY_SCOPE', {
    what: `${other} of a key is for the operator of the gateway`,
    because: `a user may set ${Object.keys(derivedSettingsSchema.shape).join(', ')}, which only narrow what her key may do`,
  });
}

/**
 * What only shows when it is read is checked, and names of providers become the fingerprints that they lead to now.
 *
 * @throws E_REQUEST_QOS, E_REQUEST_PROVIDERS
 */
function checkedSettings<T extends Pick<KeyChanges, 'qos' | 'providers' | 'provides'>>(
  settings: T,
  known: KnownProviders,
): T {
  const { qos, providers, provides } = settings;
  if (qos) parseQos(qos);
  const checked = { ...settings };
  if (providers) checked.providers = known.resolve(providers.flatMap(parseProviders));
  if (provides) checked.provides = known.resolve(provides.flatMap(parseProviders));
  return checked;
}
