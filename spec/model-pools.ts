/**
 * Prefill and decode pools: some replicas of a model compute prompts, others go on with the answers, and keys and
 * values (KV) travel between the two (DistServe, https://arxiv.org/abs/2401.09670; Splitwise,
 * https://arxiv.org/abs/2311.18677; vLLM calls it disaggregated prefill). A pool is planned as a model of its own is.
 */
import { z } from 'zod';

export const poolNames = ['prefill', 'decode'] as const;
export type PoolName = (typeof poolNames)[number];

export const devicesSchema = z.strictObject({
  kind: z.enum(['any', 'cpu', 'gpu']).default('any').describe('Where it may run.'),
  models: z
    .array(z.string())
    .default([])
    .describe('Device models that are acceptable (A100, GH200, …); empty: all.'),
  node_kinds: z
    .array(z.string())
    .default([])
    .describe('Node kinds of the site config that are acceptable; empty: all.'),
});

const poolSchema = z.strictObject({
  replicas: z
    .int()
    .max(4096)
    .refine((replicas) => replicas >= 1, {
      error: 'a pool has at least one replica; for replicas that do both, leave out pools and write replicas',
    })
    .default(1)
    .describe('Running copies in this pool.'),
  devices: devicesSchema.optional().describe('Where this pool may run. Default: devices of the model.'),
  max_sequences: z
    .int()
    .min(1)
    .max(4096)
    .optional()
    .describe('Sequences at once in a replica of this pool. Default: max_sequences of the model.'),
  prefill_chunk_tokens: z
    .int()
    .min(16)
    .max(65_536)
    .optional()
    .describe('Prompt tokens computed in one iteration here. Default: prefill_chunk_tokens of the model.'),
});

/** Both, or neither: what one computes the other goes on with. */
export const poolsSchema = z.strictObject({
  prefill: poolSchema.describe('Replicas that compute prompts, and send their KV on.'),
  decode: poolSchema.describe('Replicas that go on with the answers.'),
});

/**
 * What a model, or a pool of it, is called in a plan: `chat`, `chat (prefill)`. No served name has spaces, so that a
 * pool is never taken for a model.
 */
export function plannedName(model: string, pool: PoolName | undefined): string {
  return pool === undefined ? model : `${model} (${pool})`;
}

/** The same of a unit of a job. */
export function plannedNameOf({
  model,
  pool,
}: {
  model: { name: string };
  pool?: PoolName | undefined;
}): string {
  return plannedName(model.name, pool);
}

/** The name that clients know, of one in a plan. */
export function servedNameOf(planned: string): string {
  const at = planned.indexOf(' (');
  return at < 0 ? planned : planned.slice(0, at);
}

/** Names of units of a pool are made of this, as of a model `chat/prefill`: which must not stand beside it. */
export function unitStem(planned: string): string {
  return planned.replace(/ \((\w+)\)$/, '/$1');
}
