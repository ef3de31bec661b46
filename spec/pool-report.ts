/** What the unified memory pool of a device says of itself. Sizes are bytes. */
import { z } from 'zod';

const bytes = z.number().min(0);

const pooledModelSchema = z.object({
  model: z.string(),
  /** Tensors that models share count for each. */
  weights_bytes: bytes,
  kv_bytes_used: bytes,
  /** Kept for prompts that begin alike; given up when memory is short. */
  kv_bytes_cached: bytes,
  kv_bytes_budget: bytes,
});

/** Weights, reusable, KV, scratch, arena, lost and free bytes add up to `pool_bytes`. */
export const poolReportSchema = z.object({
  pool_bytes: bytes,
  /** Tensors that instances use. */
  weights_bytes: bytes,
  /** Tensors that no instance uses now. */
  reusable_bytes: bytes,
  /** KV caches: in use, and kept for prompts that begin alike. */
  kv_bytes: bytes,
  /** Intermediate results of engines. */
  scratch_bytes: bytes,
  /** What weights are streamed through; absent: none are. */
  arena_bytes: bytes.optional(),
  /** Of loads that hang: never used again. */
  lost_bytes: bytes,
  free_bytes: bytes,
  largest_free_bytes: bytes,
  regions: z.int().min(0),
  /** Bytes of the pool that have memory behind them: others were never written. */
  resident_bytes: bytes,
  /** PSS of the worker without the pool and the page cache: programs, and what backends allocate for themselves. */
  outside_pool_bytes: bytes,
  /** Models that are loaded. */
  models: z.array(pooledModelSchema),
  /** How much of each model's weights lies in the pool, loaded or not: S′ of Tangram's Equation 3. */
  resident_models: z.array(z.object({ model: z.string(), bytes })),
});
export type PoolReport = z.infer<typeof poolReportSchema>;
