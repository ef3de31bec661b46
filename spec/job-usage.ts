/** Device-time of jobs beside what was computed in it: `hpcserve usage jobs` and `GET /hpcserve/v1/usage/jobs`. */
import { z } from 'zod';

/** By what jobs are summed. A job has one value of each but `model`. */
export const jobDimensions = ['job', 'account', 'deployment', 'model', 'node_kind', 'tier', 'site'] as const;
export type JobDimension = (typeof jobDimensions)[number];

/** By `account,deployment`; each dimension once. */
export const jobGroupBySchema = z
  .array(z.enum(jobDimensions))
  .min(1)
  .refine((names) => new Set(names).size === names.length, 'a dimension is named twice');

const count = z.number().min(0);

export const jobUsageRowSchema = z.object({
  /** One value a dimension that was asked for; `-` where nothing is known. */
  group: z.partialRecord(z.enum(jobDimensions), z.string()),
  jobs: count,
  /** Of these, those of which nobody knows how long they ran, or with how many devices: ratios leave them out. */
  unknown_jobs: count,
  /** Of one job: Slurm's account, and how it stands in the scheduler's own word. */
  account: z.string().optional(),
  state: z.string().optional(),
  /** Of one job; `device_model` says what they are. */
  devices: z.number().optional(),
  device_model: z.string().optional(),
  /** Runtime of all runs within the time asked for, s. */
  walltime_s: count,
  /** Devices × seconds that the jobs had; absent where that is known of none. */
  allocated_device_s: count.optional(),
  /** The same as far as requests were charged for it. */
  busy_device_s: count,
  /** Share of the allocated device-time that no request was charged for, 0 to 1. Not by model. */
  idle_share: z.number().min(0).max(1).optional(),
  requests: count,
  prompt_tokens: count,
  completion_tokens: count,
  /** Tokens of prompts and answers over allocated device-hours. */
  tokens_per_device_hour: count.optional(),
  /** Energy of what requests were charged for, and how much of it is an estimate. */
  energy_j: count,
  energy_estimated_j: count,
  kwh_per_million_tokens: count.optional(),
  /** Of a run nobody said when it ended, but when it was found to be over: its time is an upper bound. */
  end_seen: z.literal(true).optional(),
});
export type JobUsageRow = z.infer<typeof jobUsageRowSchema>;

/** `GET /hpcserve/v1/usage/jobs?format=json`. */
export const jobUsageAnswerSchema = z.object({
  group_by: jobGroupBySchema,
  since_ms: z.number().optional(),
  until_ms: z.number().optional(),
  jobs: z.array(jobUsageRowSchema),
});
export type JobUsageAnswer = z.infer<typeof jobUsageAnswerSchema>;
