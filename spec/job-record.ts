/** What is kept of each run of a job, and outlives the scheduler's memory of it: what usage is joined with. */
import { z } from 'zod';

/**
 * One run of a job: one that was put back into the queue and started again has several, told apart by their start. What
 * is absent is not known.
 */
export const jobRecordSchema = z.object({
  format: z.literal(1),
  site: z.string(),
  /** As sessions tell it: `123`, of a task of an array `123_4`. */
  job_id: z.string().min(1),
  launch_id: z.string().optional(),
  deployment: z.string().optional(),
  /** What it was submitted to serve. */
  models: z.array(z.string()).default([]),
  tier: z.string().optional(),
  node_kind: z.string().optional(),
  /** Slurm's account. */
  account: z.string().optional(),
  /** Slurm's compact list, such as `gh[1-2]`. */
  nodes: z.string().optional(),
  /** Devices of all its nodes that it was submitted for, and what they are. */
  devices: z.int().min(1).optional(),
  device_model: z.string().optional(),
  /** The scheduler's own word, such as `RUNNING` or `TIMEOUT`; of a run that went back into the queue, `REQUEUED`. */
  state: z.string(),
  /** Unix ms, by the scheduler's clock. */
  start_ms: z.number(),
  /** Absent: it runs. */
  end_ms: z.number().optional(),
  /** The scheduler has not said when it ended: it was found to be over at `end_ms`. */
  end_seen: z.literal(true).optional(),
  /** When its wall time is over, where there is a limit. */
  end_limit_ms: z.number().optional(),
});
export type JobRecord = z.infer<typeof jobRecordSchema>;

/** Which run of which job a record tells of; a later record of a run replaces those before. */
export function runKey({ site, job_id, start_ms }: Pick<JobRecord, 'site' | 'job_id' | 'start_ms'>): string {
  return JSON.stringify([site, job_id, start_ms]);
}
