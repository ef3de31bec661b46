import { z } from 'zod';

/** Of an engine that takes turns with others on its device: one is awake, the others wait in host memory. */
export const turnsReportSchema = z.object({
  /** Requests that wait for its turn. */
  waiting: z.number(),
  /** Requests since its start that waited for a turn, and such as were refused because a promise would be broken. */
  waited: z.number(),
  refused: z.number(),
  /** What a change to it is expected to take, ms. */
  change_ms: z.number(),
});

export type TurnsReport = z.infer<typeof turnsReportSchema>;
