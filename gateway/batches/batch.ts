import { z } from 'zod';

/** Paths whose requests a batch may hold. */
export const batchPaths = [
  ...(['/v1/chat/completions', '/v1/completions', '/v1/embeddings'] as const),
  '/v1/responses',
] as const;

const time = z.number().nullable();
const problem = z.object({
  code: z.string(),
  message: z.string(),
  line: z.number().nullable(),
  param: z.null(),
});
export type BatchProblem = z.infer<typeof problem>;

/** A batch as OpenAI's API shows it, times in Unix s; and who works on it. */
export const batchSchema = z.object({
  id: z.string(),
  object: z.literal('batch'),
  endpoint: z.enum(batchPaths),
  errors: z.object({ object: z.literal('list'), data: z.array(problem) }).nullable(),
  input_file_id: z.string(),
  completion_window: z.string(),
  status: z.enum([
    ...(['validating', 'failed', 'in_progress', 'finalizing', 'completed'] as const),
    ...(['expired', 'cancelling', 'cancelled'] as const),
  ]),
  output_file_id: z.string().nullable(),
  error_file_id: z.string().nullable(),
  created_at: z.number(),
  in_progress_at: time,
  expires_at: z.number(),
  finalizing_at: time,
  completed_at: time,
  failed_at: time,
  expired_at: time,
  cancelling_at: time,
  cancelled_at: time,
  request_counts: z.object({ total: z.number(), completed: z.number(), failed: z.number() }),
  metadata: z.record(z.string(), z.string()).nullable(),
  /** The gateway that works on it, by the name of its folder; it goes on after a restart. */
  gateway: z.string(),
});
export type KeptBatch = z.infer<typeof batchSchema>;

const ended: ReadonlySet<KeptBatch['status']> = new Set(['failed', 'completed', 'expired', 'cancelled']);

export function isEnded({ status }: KeptBatch): boolean {
  return ended.has(status);
}

/** Whether what is kept under an id is of a batch: its record, a part of its results, or its mark that it is to end. */
export function isOfBatch(id: string, batch_id: string): boolean {
  const number = batch_id.slice('batch_'.length);
  return id === batch_id || id === `cancel-${number}` || id.startsWith(`part-${number}x`);
}

export function now_s(): number {
  return Math.floor(Date.now() / 1000);
}

/** As clients see it. */
export function shownBatch({ gateway: _, ...batch }: KeptBatch): Omit<KeptBatch, 'gateway'> {
  return batch;
}
