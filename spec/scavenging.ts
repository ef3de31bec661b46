/** Settings of `hpcserve backfill`: how a site wants its idle nodes used, and how much of that a model wants. */
import { z } from 'zod';
import { slurmDurationPattern } from './slurm-types.ts';

/** `scavenging:` of a site config. */
export const scavengingSchema = z.strictObject({
  interval_s: z
    .number()
    .min(5)
    .default(60)
    .describe(
      'Seconds between two looks for idle nodes. Lower: holes are filled sooner, more load on Slurm.',
    ),
  jobs_max: z
    .int()
    .min(0)
    .default(16)
    .describe('Replicas on idle nodes, waiting ones included, over all deployments.'),
  waiting_max: z
    .int()
    .min(0)
    .default(2)
    .describe(
      'Jobs of a model and node kind that wait for the next hole: Slurm starts them sooner than the next look would. Lower: a shorter queue.',
    ),
  walltime: z
    .union([
      z.string().regex(slurmDurationPattern, 'a duration as Slurm writes it: MM, HH:MM:SS or D-HH:MM:SS'),
      z.int().min(1),
    ])
    .default('04:00:00')
    .describe(
      'Longest wall time asked for; the node kind’s max_time where that is less. Lower: nodes come back sooner by themselves, more starts.',
    ),
  start_share_max: z
    .number()
    .min(0.01)
    .max(0.9)
    .default(0.25)
    .describe(
      'Largest share of a job that may go into loading; --time-min follows from it, and where preemptions make it more, nothing is submitted. Lower: only long holes are used.',
    ),
  requeues_max: z
    .int()
    .min(0)
    .default(5)
    .describe('Times that a preempted job goes back into the queue; then a new one takes its place.'),
});

/** `scavenger:` of a model. */
export const scavengerSchema = z
  .strictObject({
    replicas: z
      .int()
      .min(0)
      .max(4096)
      .default(0)
      .describe('Replicas that `hpcserve backfill` may run beyond `replicas`, on idle preemptible nodes.'),
  })
  .describe('What it takes of idle nodes; see docs/scavenging.md.');
