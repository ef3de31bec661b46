/** What prefix caches of engines found, counted where it happens. */
import { z } from 'zod';

const count = z.number().min(0);

/** Since the engine started. */
export const prefixCacheCountsSchema = z.object({
  /** Tokens of prompts that were looked for. */
  queried_tokens: count,
  /** Of these, tokens that were there and not computed again. */
  found_tokens: count,
});
export type PrefixCacheCounts = z.infer<typeof prefixCacheCountsSchema>;
