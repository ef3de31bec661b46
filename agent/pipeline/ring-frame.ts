/** Frames that two neighbours of a ring exchange about their connection. */
import { z } from 'zod';
import { encodeJsonFrame, type FrameBytes, type FrameKind } from './frame.ts';

/** What a greeting may say of providers. */
export const providers_max = 16;
export const provider_length_max = 64;

/** What a stage says that takes frames by memory, and the providers of libfabric by which it lends memory to others. */
export const greetingMetaSchema = z.object({
  shares: z.literal(true),
  fabrics: z
    .array(z.string().min(1).max(provider_length_max))
    .max(providers_max)
    .optional()
    // What it lends is no reason to send nothing by memory.
    .catch(undefined),
});
export type GreetingMeta = z.infer<typeof greetingMetaSchema>;

/** Of a connection, and of no epoch of its pipeline. */
export function ringFrame(kind: FrameKind, meta: unknown): FrameBytes {
  return encodeJsonFrame({ kind, epoch: 0, number: 0 }, meta);
}
