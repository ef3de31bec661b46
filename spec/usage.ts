/** What is asked of ledgers, and what they answer: the same for `hpcserve usage` and `GET /hpcserve/v1/usage`. */
import { z } from 'zod';

/** By what usage is summed. `device` is what computed it, such as `4x A100-40GB`; times are those of UTC. */
export const usageDimensions = [
  'user',
  'key',
  'project',
  'account',
  'model',
  'engine',
  'precision',
  'provider',
  'site',
  'node',
  'job',
  'deployment',
  'device',
  'tier',
  'endpoint',
  'hour',
  'day',
  'month',
] as const;
export type UsageDimension = (typeof usageDimensions)[number];

/** More are of no use in one table. */
const dimensions_max = 6;
/** Values of one filter. */
const values_max = 64;

/** By `user,model,day`; each dimension once. */
export const groupBySchema = z
  .array(z.enum(usageDimensions))
  .min(1)
  .max(dimensions_max)
  .refine((names) => new Set(names).size === names.length, 'a dimension is named twice');

const filterName = z.enum(usageDimensions).exclude(['hour', 'day', 'month']);
/** Dimensions that can be chosen by value; times are chosen by `since_ms` and `until_ms`. */
export const usageFilterNames = filterName.options;

/** Only what has one of these values. */
export const usageFilterSchema = z.partialRecord(
  filterName,
  z.array(z.string().max(256)).min(1).max(values_max),
);
export type UsageFilter = z.infer<typeof usageFilterSchema>;

export interface UsageQuery {
  group_by: readonly UsageDimension[];
  /** Unix ms, inclusive. */
  since_ms?: number | undefined;
  /** Unix ms, exclusive. */
  until_ms?: number | undefined;
  filter?: UsageFilter | undefined;
  /** What the caller may see at all: absent, everything. */
  only?: { key_ids: readonly string[] } | { provider_ids: readonly string[] } | undefined;
}

const count = z.number().min(0);

/** Sums over requests. Counts of tokens are 0 where no answer reported any. */
export const usageSumsSchema = z.object({
  requests: count,
  /** Requests that ended with an error. */
  errors: count,
  /** Replicas that were asked beyond the first. */
  retries: count,
  prompt_tokens: count,
  completion_tokens: count,
  cached_tokens: count,
  reasoning_tokens: count,
  /** Sum of the requests' durations. */
  duration_ms: count,
  /** Sum of the times to the first byte, and of how many requests. */
  ttft_ms: count,
  ttft_requests: count,
  /** Time after the first byte, and the tokens that came in it: their quotient is the time per output token. */
  decode_ms: count,
  decode_tokens: count,
  /** Devices × seconds: of the time that a session answers, each request that runs has an equal share. */
  device_s: count,
  /** Energy of these, and how much of it is an estimate: the catalog's power × time. */
  energy_j: count,
  energy_estimated_j: count,
  /** First and last arrival, Unix ms. */
  first_ms: z.number(),
  last_ms: z.number(),
});
export type UsageSums = z.infer<typeof usageSumsSchema>;

export const usageRowSchema = usageSumsSchema.extend({
  /** One value a dimension that was asked for; `-` where nothing is known. */
  group: z.partialRecord(z.enum(usageDimensions), z.string()),
  /** Of a key. */
  key_name: z.string().optional(),
});
export type UsageRow = z.infer<typeof usageRowSchema>;

export const usageFormats = ['json', 'csv', 'md'] as const;

/** `GET /hpcserve/v1/usage?format=json`. */
export const usageAnswerSchema = z.object({
  group_by: groupBySchema,
  since_ms: z.number().optional(),
  until_ms: z.number().optional(),
  usage: z.array(usageRowSchema),
});
export type UsageAnswer = z.infer<typeof usageAnswerSchema>;

/** What is added up where groups come together; of `first_ms` and `last_ms` the least and the most count. */
export const summedUsage = [
  'requests',
  'errors',
  'retries',
  'prompt_tokens',
  'completion_tokens',
  'cached_tokens',
  'reasoning_tokens',
  'duration_ms',
  'ttft_ms',
  'ttft_requests',
  'decode_ms',
  'decode_tokens',
  'device_s',
  'energy_j',
  'energy_estimated_j',
] as const satisfies (keyof UsageSums)[];

/** The sums of several ledgers, of one query, as one; in the order of their groups. */
export function addUsage(ledgers: readonly (readonly UsageRow[])[]): UsageRow[] {
  const byGroup = new Map<string, UsageRow>();
  for (const row of ledgers.flat()) {
    const group = JSON.stringify(Object.values(row.group));
    const sum = byGroup.get(group);
    if (!sum) {
      byGroup.set(group, { ...row });
      continue;
    }
    for (const field of summedUsage) sum[field] += row[field];
    sum.first_ms = Math.min(sum.first_ms, row.first_ms);
    sum.last_ms = Math.max(sum.last_ms, row.last_ms);
  }
  return [...byGroup].sort(([a], [b]) => (a < b ? -1 : 1)).map(([, row]) => row);
}
