/** What a device says of a model whose weights lie in host memory. */
import { z } from 'zod';

const bytes = z.number().min(0);

export const streamedWeightsSchema = z.object({
  /** They go through so many bytes of the device, which such models share. */
  arena_bytes: bytes,
  /** Of the weights, layers that stay on the device; they come once. */
  resident_bytes: bytes,
  /** What every step brings. */
  step_bytes: bytes,
  /** What its transfers reached lately; absent: there were none that say so. */
  link_bytes_per_s: z.number().positive().optional(),
  /** Why it is slower than it was planned; absent: it is not. */
  because: z.array(z.string()).optional(),
});
export type StreamedWeights = z.infer<typeof streamedWeightsSchema>;
