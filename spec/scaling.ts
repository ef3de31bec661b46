/** `scaling:` of a model: how many replicas it has, by demand. */
import { z } from 'zod';

/** Reclamation window where the file does not say: FlexPipe's five minutes (§9.4). */
export const reclamation_s = 300;

export const scalingSchema = z
  .strictObject({
    min: z
      .int()
      .min(0)
      .max(4096)
      .optional()
      .describe(
        'Replicas that are always on; 0: the model sleeps when nobody asks, and a request wakes it. Default: 30 % of max, rounded up.',
      ),
    max: z.int().min(1).max(4096).describe('Most replicas there may be.'),
    target: z
      .number()
      .min(0.05)
      .max(1)
      .default(0.7)
      .describe(
        'Share of the sequences a replica computes at once that is to be in use on average. Lower: shorter waits; higher: fewer replicas.',
      ),
    window_s: z
      .number()
      .min(1)
      .default(reclamation_s)
      .describe(
        'Reclamation window: a replica goes when it was not needed for so long. Lower: fewer idle hours, more starts.',
      ),
  })
  .refine(({ min = 0, max }) => min <= max, { message: 'min is more than max', path: ['min'] });
export type ScalingSpec = z.infer<typeof scalingSchema>;
