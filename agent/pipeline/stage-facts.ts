import { z } from 'zod';
import { HpcserveError } from '../../spec/errors/error.ts';

/** What the stages of a pipeline tell each other before the first batch: each adds its own to what goes around. */
export const stageFactsSchema = z.object({
  stage: z.int().min(0),
  /** Operators [begin, end). */
  begin: z.int().min(0),
  end: z.int().min(1),
  /** Of the model: see `model-identity.ts`. */
  model: z.string(),
  /** Release of hpcserve, and of what computes: rows of another one may mean something else. Absent: not known. */
  build: z.string().optional(),
  kv_type: z.string(),
  batch_invariant: z.boolean(),
  kv_tokens: z.int().min(0),
  weight_bytes: z.number().min(0),
  kv_bytes: z.number().min(0),
  /** What computes, for people. */
  device: z.string(),
  /** What the stage is on, to all processes of its host. */
  device_identity: z.string(),
  /** Of its worker in the mesh; absent: no rows can be sent there but by the ring. */
  session: z.string().optional(),
  /** The last epoch that it has seen. */
  epoch: z.int().min(0),
});
export type StageFacts = z.infer<typeof stageFactsSchema>;

export const openMetaSchema = z.object({ n_operators: z.int(), stages: z.array(stageFactsSchema) });
/** @param refactoring absent: the pipeline is opened, and nothing of a layout before it is needed any more */
export const beginMetaSchema = z.object({ epoch: z.int().min(1), refactoring: z.int().optional() });
const errorJsonSchema = z.object({
  code: z.string(),
  what: z.string(),
  because: z.array(z.string()),
  try: z.array(z.string()),
  details: z.record(z.string(), z.unknown()),
});
export const failedMetaSchema = z.object({ stage: z.int(), error: errorJsonSchema });

/**
 * Whether these stages are one pipeline.
 * @throws HpcserveError E_STAGE_MISMATCH
 */
export function checkStages(stages: readonly StageFacts[], n_operators: number): void {
  const wrong: string[] = [];
  const [first] = stages;
  let next = 0;
  const devices = new Map<string, number>();
  stages.forEach((facts, index) => {
    if (facts.stage !== index) wrong.push(`stage ${facts.stage} is in the place of stage ${index}`);
    if (facts.begin !== next)
      wrong.push(`stage ${index} begins at operator ${facts.begin}, and the one before it ends at ${next}`);
    next = facts.end;
    for (const key of ['model', 'kv_type', 'batch_invariant'] as const)
      if (facts[key] !== first![key])
        wrong.push(`stage ${index} has ${key} ${facts[key]}, and stage 0 has ${first![key]}`);
    const other = devices.get(facts.device_identity);
    if (other !== undefined) wrong.push(`the stages ${other} and ${index} are on one device`);
    devices.set(facts.device_identity, index);
  });
  if (next !== n_operators) wrong.push(`the last stage ends at operator ${next} of ${n_operators}`);
  if (wrong.length === 0) return;
  throw new HpcserveError('E_STAGE_MISMATCH', {
    what: 'the stages do not make up one pipeline',
    because: wrong,
  });
}
