/**
 * `deployment.json`: what was asked for and what was done about it. Everything a command on another login
 * node needs to go on where this one stopped.
 */
import { z } from 'zod';
import type { ErrorJson } from '../../spec/errors/error.ts';
import { launchSchema } from '../../spec/launch.ts';
import { deploymentSchema } from '../../spec/model-yaml.ts';
import type { PlannedLaunch, PlannedModel } from '../../spec/plan.ts';

const jobSnapshotSchema = z.object({
  job_id: z.string(),
  job_number: z.string().optional(),
  phase: z.enum(['pending', 'running', 'completing', 'ended', 'unknown']),
  presumed: z.boolean().optional(),
  state: z.string(),
  pending: z.object({ reason: z.string(), explanation: z.string() }).optional(),
  estimated_start_ms: z.number().optional(),
  start_time_ms: z.number().optional(),
  end_time_limit_ms: z.number().optional(),
  nodes: z.string().optional(),
  exit_code: z.number().optional(),
  signal: z.number().optional(),
  reason: z.string().optional(),
  restart_count: z.number().optional(),
});

/**
 * planned: decided, nothing done. submitting: written down, the scheduler may or may not have it.
 * submitted: it has a job id. ended: its job is over, or it never became one.
 */
const launchPhases = ['planned', 'submitting', 'submitted', 'ended'] as const;

const launchRecordSchema = z.object({
  launch_id: launchSchema.shape.launch_id,
  phase: z.enum(launchPhases),
  /** Equal for launches that run the same thing: an unchanged one is kept when the deployment changes. */
  fingerprint: z.string(),
  planned: z.custom<PlannedLaunch>(
    (value) => typeof value === 'object' && value !== null && 'units' in value,
  ),
  /** Replaced by launches of a later generation; cancelled once those serve. */
  superseded: z.boolean().default(false),
  /** It is to take the place of this launch, which waits in the queue; see stand-ins.ts. Absent once it has. */
  instead_of: z.string().optional(),
  submitting_since_ms: z.number().optional(),
  /** Submitted as this task of a job array; see `ArrayTask`. */
  array: z.object({ array_id: z.string(), task: z.int().min(0) }).optional(),
  job_id: z.string().optional(),
  where: z.string().optional(),
  cancel_requested_ms: z.number().optional(),
  /** How the job ended, or its last known state. */
  last: jobSnapshotSchema.optional(),
  ended_at_ms: z.number().optional(),
  /** When the keeper first saw all its replicas serve. */
  served_at_ms: z.number().optional(),
  /** Launches in its place before it that came to nothing, one after the other. */
  tries: z.int().min(0).optional(),
  /** Why nothing more is started in its place. */
  given_up: z.string().optional(),
});
export type LaunchRecord = z.infer<typeof launchRecordSchema>;

const plannedModels = z.custom<PlannedModel[]>((value) => Array.isArray(value));

export const deploymentStateSchema = z.object({
  format: z.literal(1),
  name: z.string(),
  site: z.string(),
  owner: z.string(),
  /** Counts accepted changes of the specification. */
  generation: z.int().min(1),
  /** SHA-256 over the specification with defaults and the model files: equal means nothing to do. */
  spec_digest: z.string(),
  spec_file: z.string(),
  spec: deploymentSchema,
  desired: z.enum(['serving', 'stopped']),
  /** The keeper acts on it: it has served, or was submitted for nobody to follow. */
  kept: z.boolean().optional(),
  created_at_ms: z.number(),
  updated_at_ms: z.number(),
  /** Why the last attempt did not serve; kept for `status`. */
  failure: z
    .custom<ErrorJson>((value) => typeof value === 'object' && value !== null && 'code' in value)
    .optional(),
  models: plannedModels,
  /** While a changed version starts: the one before, to which a change that fails goes back. */
  previous: z
    .object({
      spec_digest: z.string(),
      spec_file: z.string(),
      spec: deploymentSchema,
      models: plannedModels,
      launch_ids: z.array(z.string()),
    })
    .optional(),
  launches: z.array(launchRecordSchema),
  /** Models whose number of replicas follows demand. */
  scaled: z
    .record(
      z.string(),
      z.object({
        changed_ms: z.number(),
        /** It has no replica, since then; until one serves again. */
        asleep_since_ms: z.number().optional(),
        /** It is being started again, since then. */
        waking_since_ms: z.number().optional(),
        /** How long a start took the last time, s. */
        wake_s: z.number(),
      }),
    )
    .optional(),
});
export type DeploymentState = z.infer<typeof deploymentStateSchema>;

/** Launches that are not over. */
export function liveLaunches(state: DeploymentState): LaunchRecord[] {
  return state.launches.filter((launch) => launch.phase !== 'ended');
}

/**
 * Launches the deployment is to consist of now; the superseded ones are on their way out, those that stand in have no
 * place yet, and those on idle nodes are there beyond it.
 */
export function wantedLaunches(state: DeploymentState): LaunchRecord[] {
  return state.launches.filter(
    (launch) => !launch.superseded && launch.instead_of === undefined && !launch.planned.scavenged,
  );
}

/** Launches on idle nodes that are not on their way out. */
export function scavengedLaunches(state: DeploymentState): LaunchRecord[] {
  return state.launches.filter((launch) => !launch.superseded && launch.planned.scavenged);
}

/** Ended launches kept in the state, for `logs` and `status`. */
const endedLaunchesKept = 20;

/** The launches without the oldest of those that are replaced and over. */
export function forgetOldest(launches: readonly LaunchRecord[]): LaunchRecord[] {
  const ended = launches.filter((launch) => launch.superseded && launch.phase === 'ended');
  const forgotten = new Set(ended.slice(endedLaunchesKept));
  return launches.filter((launch) => !forgotten.has(launch));
}
