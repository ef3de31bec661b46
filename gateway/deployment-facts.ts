import { z } from 'zod';

/** What the gateway reads of control's `deployment.json`; the rest is control's own. */
export const deploymentFacts = z.object({
  name: z.string(),
  desired: z.string(),
  spec: z.object({
    models: z.array(z.object({ name: z.string(), aliases: z.array(z.string()).default([]) })),
  }),
  scaled: z
    .record(
      z.string(),
      z.object({
        asleep_since_ms: z.number().optional(),
        waking_since_ms: z.number().optional(),
        wake_s: z.number(),
      }),
    )
    .optional(),
  launches: z.array(
    z.object({
      phase: z.string(),
      superseded: z.boolean().default(false),
      submitting_since_ms: z.number().optional(),
      job_id: z.string().optional(),
      where: z.string().optional(),
      ended_at_ms: z.number().optional(),
      last: z
        .object({
          phase: z.string(),
          state: z.string(),
          reason: z.string().optional(),
          pending: z.object({ reason: z.string(), explanation: z.string() }).optional(),
          estimated_start_ms: z.number().optional(),
          start_time_ms: z.number().optional(),
          end_time_limit_ms: z.number().optional(),
          nodes: z.string().optional(),
        })
        .optional(),
    }),
  ),
});
export type DeploymentFacts = z.infer<typeof deploymentFacts>;
