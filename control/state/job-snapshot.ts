/** A job as it was last seen: what runners answer, and `deployment.json` keeps. */
import { z } from 'zod';

const jobPhaseSchema = z.enum([
  /** Known to the scheduler, not started. */
  'pending',
  'running',
  /** Ending: signalled, cleaning up. */
  'completing',
  /** Ended; `state`, `exit_code`, `reason` say how. */
  'ended',
  /** The runner has no memory of it (accounting off and the job purged). */
  'unknown',
]);
export type JobPhase = z.infer<typeof jobPhaseSchema>;

export const jobSnapshotSchema = z.object({
  job_id: z.string(),
  /**
   * Slurm's own number, which srun wants: of a task of an array, whose `job_id` is `123_4`, and of a joined node's job.
   */
  job_number: z.string().optional(),
  phase: jobPhaseSchema,
  /** It was taken for ended, for nobody answers for it any more: where it runs after all, it is to end. */
  presumed: z.boolean().optional(),
  /** The runner's own word: PENDING, RUNNING, CANCELLED by 1000, FAILED, … */
  state: z.string(),
  /** Why it waits, in Slurm's word and in plain words. */
  pending: z.object({ reason: z.string(), explanation: z.string() }).optional(),
  estimated_start_ms: z.number().optional(),
  start_time_ms: z.number().optional(),
  /** When its wall time ends, where there is a limit. */
  end_time_limit_ms: z.number().optional(),
  /** When it ended, by the scheduler; of one that is completing, when that began. */
  ended_at_ms: z.number().optional(),
  nodes: z.string().optional(),
  /** Slurm's account. */
  account: z.string().optional(),
  exit_code: z.number().optional(),
  signal: z.number().optional(),
  /** Why it ended, as far as the runner knows. */
  reason: z.string().optional(),
  /** Times it went back into the queue. */
  restart_count: z.number().optional(),
});
export type JobSnapshot = z.infer<typeof jobSnapshotSchema>;

/** Which task of which array a launch was submitted as. */
export const arrayTaskSchema = z.object({ array_id: z.string(), task: z.int().min(0) });
export type ArrayTask = z.infer<typeof arrayTaskSchema>;
