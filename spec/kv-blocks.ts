/**
 * What a session tells gateways of the blocks that its engine's KV cache holds, piece by piece in heartbeats: names of
 * blocks (`solver/routing/token-blocks.ts`), never a token.
 */
import { z } from 'zod';

export const kvBlockNewsSchema = z.object({
  /** What was told before is void: these are the first. */
  reset: z.literal(true).optional(),
  /** Nothing more is told, and what was told before is void. */
  over: z.literal(true).optional(),
  /** Tokens of a block. */
  block_tokens: z.int().min(1).max(65_536),
  /** Base64 of six bytes a change, the first first: a sign (1: it is gone) and the block's 47 bits. */
  changes: z.string().regex(/^[A-Za-z0-9+/]*$/),
});
export type KvBlockNews = z.infer<typeof kvBlockNewsSchema>;

/** Bytes of one change. */
export const kvChange_bytes = 6;
/** Changes in one heartbeat at most. Lower: heartbeats stay short; higher: a gateway that is new knows all sooner. */
export const kvChanges_max = 8192;
