/** What came of planning a deployment again, as its state keeps it and as `status` and the keeper's log show it. */
import { z } from 'zod';

export const replanOutcomeSchema = z.object({
  /** A node was lost, the cluster changed, or requests come otherwise than planned for. */
  trigger: z.enum(['loss', 'cluster', 'load']),
  /** What was seen, with its numbers. */
  because: z.string(),
  /** Whether anything moves. */
  changed: z.boolean(),
  /** What starts and what it takes the place of, or why everything stays. */
  what: z.string(),
  /** Share of the cost that the new plan saves; absent where what stood could not go on. */
  gain: z.number().optional(),
});
export type ReplanOutcome = z.infer<typeof replanOutcomeSchema>;
