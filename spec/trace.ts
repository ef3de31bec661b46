import { z } from 'zod';

/** Of a bucket's hash, in the ledger and in exported traces. */
export const prefixHash_bytes = 6;
/** Tokens of a prompt that share a bucket. */
export const bucket_tokens = 16;

const count = z.number().int().min(0);

/** One request of an exported trace, in LLMFabric's schema (§6): a line of JSON. */
export const traceRowSchema = z.object({
  /** Arrival, Unix ms. */
  time_ms: z.number(),
  model: z.string().max(1024),
  input_tokens: count,
  output_tokens: count,
  cached_tokens: count.optional(),
  reasoning_tokens: count.optional(),
  ttft_ms: z.number().min(0).optional(),
  e2e_ms: z.number().min(0),
  stream: z.boolean(),
  status: z.number().int(),
  /** Sampling parameters as the client named them. */
  parameters: z.record(z.string(), z.number()),
  /** One id for each 16 tokens of the prompt's beginning; equal where all up to their end is. */
  buckets: z.array(z.string().max(64)),
});
export type TraceRow = z.infer<typeof traceRowSchema>;
