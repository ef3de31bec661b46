/** What a device says of a model whose weights lie in host memory. */
import { z } from 'zod';

const bytes = z.number().min(0);

export const streamedWeightsSchema = z.object({
  /** They go through so many bytes of the device, which such models share. */
  arena_bytes: bytes,
  /** Of the device, what layers have that stay there, which come once, and slots of experts. */
  resident_bytes: bytes,
  /** What every step brings; where only experts come that it needs, what it brings on average. */
  step_bytes: bytes,
  /**
   * Of a mixture: how many of the experts that batches need are on the device, or on their way, when their router names
   * them, 0 to 1. Absent: experts come with their layers.
   */
  experts_at_hand: z.number().min(0).max(1).optional(),
  /** What its transfers reached lately; absent: there were none that say so. */
  link_bytes_per_s: z.number().positive().optional(),
  /** The most that they reached, which is near to what they do while no neighbour reads; absent: not known yet. */
  link_bytes_per_s_max: z.number().positive().optional(),
  /** Why it is slower than it was planned; absent: it is not. */
  because: z.array(z.string()).optional(),
});
export type StreamedWeights = z.infer<typeof streamedWeightsSchema>;
