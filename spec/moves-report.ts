/** What a device worker says of answers that moved to other workers with their keys and values (KV), and came so. */
import { z } from 'zod';

const count = z.int().min(0);
const bytes = z.number().min(0);

/** What went to one peer, while the worker lives. */
const peerMovesSchema = z.object({
  /** Session and node. */
  peer: z.string(),
  node: z.string(),
  /** How bytes travel now, as `rma (shm)` or `sendfile`; absent: no way is open. */
  way: z.string().optional(),
  transfers: count,
  bytes,
  /** In transfers alone. */
  busy_ms: z.number().min(0),
  failures: count,
  /** Ways that were announced and did not work. */
  fallbacks: count,
  /** The last of those. */
  last_fallback: z.string().optional(),
});

export const movesReportSchema = z.object({
  /** Answers that went on elsewhere with their KV. */
  moved: count,
  /** Those that were to, and were given away by their tokens, to be computed again. */
  recomputed: count,
  /** Why the last of those was. */
  last_because: z.string().optional(),
  /** Answers that were continued here with KV that had come, and tokens that were not computed again for it. */
  continued: count,
  continued_tokens: count,
  /** KV that came, and whoever was to continue with it found none of it. */
  missed: count,
  peers: z.array(peerMovesSchema),
});
export type MovesReport = z.infer<typeof movesReportSchema>;
