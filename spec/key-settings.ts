/** What an API key may be used for, and how much. Nothing set: everything, without limit. */
import { z } from 'zod';
import { limits } from './wire.ts';

const tokens = z.number().int().min(1).max(1e15);
const perMinute = z.number().int().min(1).max(1e9);

/** `total`: ever. Days and months are those of UTC. */
const budgetWindows = ['day', 'month', 'total'] as const;

/** As a group: the key alone. */
export const privateCacheGroup = 'private';

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
  budget: z.strictObject({ tokens, window: z.enum(budgetWindows) }).optional(),
  /**
   * Prompts are found again in the prefix caches of engines by keys of the same group alone. Absent: the group of all
   * keys that name none; `private`: this key alone.
   */
  cache_group: z.string().min(1).max(64).optional(),
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
});
export type KeyChanges = z.infer<typeof keyChangesSchema>;

export function changedSettings(settings: KeySettings, changes: KeyChanges): KeySettings {
  return Object.fromEntries(
    Object.entries({ ...settings, ...changes }).filter(([, value]) => value !== null && value !== undefined),
  );
}
