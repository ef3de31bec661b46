/** What an API key may be used for, and how much. Nothing set: everything, without limit. */
import { z } from 'zod';
import { limits } from './wire.ts';

const tokens = z.number().int().min(1).max(1e15);
const perMinute = z.number().int().min(1).max(1e9);

/** `total`: ever. Days and months are those of UTC. */
const budgetWindows = ['day', 'month', 'total'] as const;

/** As a group: the key alone. */
export const privateCacheGroup = 'private';

/** What else a key may do beside asking models: see docs/gateway.md. Absent: `user`. */
const keyRoles = ['user', 'provider', 'operator'] as const;

const word = z
  .string()
  .trim()
  .min(1)
  .max(128)
  .regex(/^[^\p{C}]+$/u, 'no control characters');

export const keySettingsSchema = z.strictObject({
  /** Names (or aliases) it may ask for. */
  models: z.array(z.string().min(1).max(256)).min(1).max(256).optional(),
  /** Providers it trusts, by fingerprint (the gateway makes them of names). A request may only narrow them. */
  providers: z.array(z.string().min(1).max(256)).min(1).max(64).optional(),
  /** Quality of service where a request asks for none: see docs/gateway.md. Terms of a request go first. */
  qos: z.string().max(1024).optional(),
  /** Its requests can wait: they go to replicas on preemptible nodes, unless they or `qos` ask for a tier. */
  batch: z.literal(true).optional(),
  requests_per_minute: perMinute.optional(),
  /** Requests of it that one gateway answers at a time. */
  concurrent_requests: z.number().int().min(1).max(1e6).optional(),
  /** Largest body of one of its requests, where that is less than the gateway reads. */
  body_bytes_max: z.number().int().min(1).max(limits.body_bytes).optional(),
  /** Tokens of prompts and answers together, here and in `budget`. */
  tokens_per_minute: perMinute.optional(),
  /** What it may use in each window: tokens, devices × seconds, or both. */
  budget: z
    .strictObject({
      tokens: tokens.optional(),
      device_s: z.number().positive().max(1e12).optional(),
      window: z.enum(budgetWindows),
    })
    .refine((budget) => budget.tokens !== undefined || budget.device_s !== undefined, 'tokens or device_s')
    .optional(),
  /**
   * Prompts are found again in the prefix caches of engines by keys of the same group alone. Absent: the group of all
   * keys that name none; `private`: this key alone.
   */
  cache_group: z.string().min(1).max(64).optional(),
  /** Tiers it may use; absent: all. */
  tiers: z
    .array(z.enum(['stable', 'scavenger']))
    .min(1)
    .max(2)
    .optional(),
  /** From then on it is not valid, Unix ms. */
  expires_at_ms: z.number().int().min(0).max(8.64e15).optional(),
  /** Whom its use counts for (absent: its name), and for which project. Keys of one user see each other's usage. */
  user: word.optional(),
  project: word.optional(),
  role: z.enum(keyRoles).optional(),
  /** With the role `provider`: fingerprints of the providers whose devices it is told of. */
  provides: z.array(z.string().min(1).max(256)).min(1).max(64).optional(),
  /** The ledger keeps of its requests what they add to sums, and nothing else. */
  usage: z.literal('counts').optional(),
});
export type KeySettings = z.infer<typeof keySettingsSchema>;

/** Changes of settings: `null` takes one away, what is absent stays. */
export const keyChangesSchema = z.strictObject({
  models: keySettingsSchema.shape.models.nullable(),
  providers: keySettingsSchema.shape.providers.nullable(),
  qos: keySettingsSchema.shape.qos.nullable(),
  batch: keySettingsSchema.shape.batch.nullable(),
  requests_per_minute: keySettingsSchema.shape.requests_per_minute.nullable(),
  concurrent_requests: keySettingsSchema.shape.concurrent_requests.nullable(),
  body_bytes_max: keySettingsSchema.shape.body_bytes_max.nullable(),
  tokens_per_minute: keySettingsSchema.shape.tokens_per_minute.nullable(),
  budget: keySettingsSchema.shape.budget.nullable(),
  cache_group: keySettingsSchema.shape.cache_group.nullable(),
  tiers: keySettingsSchema.shape.tiers.nullable(),
  expires_at_ms: keySettingsSchema.shape.expires_at_ms.nullable(),
  user: keySettingsSchema.shape.user.nullable(),
  project: keySettingsSchema.shape.project.nullable(),
  role: keySettingsSchema.shape.role.nullable(),
  provides: keySettingsSchema.shape.provides.nullable(),
  usage: keySettingsSchema.shape.usage.nullable(),
});
export type KeyChanges = z.infer<typeof keyChangesSchema>;

export function changedSettings(settings: KeySettings, changes: KeyChanges): KeySettings {
  return Object.fromEntries(
    Object.entries({ ...settings, ...changes }).filter(([, value]) => value !== null && value !== undefined),
  );
}

/** What a key's own user may set of keys that she derives from it: all of it only narrows. */
export const derivedSettingsSchema = keyChangesSchema.pick({
  models: true,
  providers: true,
  tiers: true,
  expires_at_ms: true,
  usage: true,
});

/** Of a key that was derived from another: what both allow, with the limits of the other. */
export function narrowedSettings(parent: KeySettings, own: KeySettings): KeySettings {
  const { models, providers, tiers, expires_at_ms, usage } = own;
  const narrowed: KeySettings = { ...parent };
  delete narrowed.role;
  delete narrowed.provides;
  const both = <T>(allowed: readonly T[] | undefined, named: T[]): T[] =>
    named.filter((one) => allowed === undefined || allowed.includes(one));
  if (models) narrowed.models = both(parent.models, models);
  if (providers) narrowed.providers = both(parent.providers, providers);
  if (tiers) narrowed.tiers = both(parent.tiers, tiers);
  if (usage) narrowed.usage = usage;
  if (expires_at_ms !== undefined)
    narrowed.expires_at_ms = Math.min(expires_at_ms, parent.expires_at_ms ?? Number.POSITIVE_INFINITY);
  return narrowed;
}
