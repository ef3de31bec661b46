/** What a device worker says of answers that moved to other workers with their keys and values (KV), and came so. */
import { z } from 'zod';

const count = z.int().min(0);
const bytes = z.number().min(0);

/** Why an answer was decoded where its prompt was computed, though others are there to decode it. */
export const keptReasons = ['short', 'several', 'no_peer', 'no_room', 'failed'] as const;
export type KeptReason = (typeof keptReasons)[number];

/** Of a replica of a prefill pool: what became of the answers whose prompts it computed. */
const handoversSchema = z.object({
  /** Went on at a replica of the decode pool, and prompt tokens whose KV went there. */
  handed_over: count,
  tokens: count,
  /** KV of these was sent before the prompt was computed to its end. */
  early_tokens: count,
  /** From the first token until the peer had everything, on average. */
  pause_ms: z.number().min(0),
  /** Decoded here, by why. */
  kept: z.record(z.enum(keptReasons), count),
  last_because: z.string().optional(),
});
export type HandoversReport = z.infer<typeof handoversSchema>;

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
  /** Absent: the worker has no replica of a prefill pool. */
  handovers: handoversSchema.optional(),
  peers: z.array(peerMovesSchema),
});
export type MovesReport = z.infer<typeof movesReportSchema>;
