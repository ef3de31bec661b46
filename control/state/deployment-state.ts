/**
 * `deployment.json`: what was asked for and what was done about it. Everything a command on another login
 * node needs to go on where this one stopped.
 */
import { z } from 'zod';
import { gpuTime_hours } from '../../solver/keeping/keep.ts';
import type { ErrorJson } from '../../spec/errors/error.ts';
import { deploymentSchema } from '../../spec/model-yaml.ts';
import type { PlannedLaunch, PlannedModel, PlannedWorkload } from '../../spec/plan.ts';
import { replanOutcomeSchema } from '../../spec/replan.ts';
import { type EndedLaunch, type LaunchRecord, launchRecordSchema } from './launch-record.ts';

const plannedModels = z.custom<PlannedModel[]>((value) => Array.isArray(value));

const plannedWorkload = z.custom<PlannedWorkload>(
  (value) => typeof value === 'object' && value !== null && 'rate_per_s' in value,
);

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
  /** The command that submits and follows what was changed; the keeper leaves it to that as long as it lives. */
  followed_by: z
    .object({
      pid: z.int(),
      start_ticks: z.number(),
      boot_id: z.string(),
      host: z.string(),
      since_ms: z.number(),
    })
    .optional(),
  /** Since when it is to serve: a changed version of it goes on, and one that was stopped begins anew. */
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
  /** What launches used that are forgotten, for the budget. */
  gpu_hours_forgotten: z.number().min(0).optional(),
  /** What the plan was made for, and what came of making it again; absent where an earlier version planned. */
  planning: z
    .object({
      planned_ms: z.number(),
      /** Nodes that took jobs, by node kind. */
      nodes: z.record(z.string(), z.number()),
      loads: z.record(z.string(), plannedWorkload),
      /** Since when cluster or load differ from this. */
      differs_since_ms: z.number().optional(),
      last: replanOutcomeSchema.extend({ at_ms: z.number() }).optional(),
    })
    .optional(),
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
type Fields = z.infer<typeof deploymentStateSchema>;
/** Never changed in place: `DeploymentStore.update` writes the next one. */
export type DeploymentState = Readonly<Omit<Fields, 'launches'>> & {
  readonly launches: readonly LaunchRecord[];
};

/** The state with each launch as `change` makes it; those it returns as they are stay. */
export function withLaunches(
  state: DeploymentState,
  change: (launch: LaunchRecord) => LaunchRecord,
): DeploymentState {
  return { ...state, launches: state.launches.map(change) };
}

/** The state with these launches in the place of those with the same ids. */
export function replaceLaunches(state: DeploymentState, changed: readonly LaunchRecord[]): DeploymentState {
  const byId = new Map(changed.map((launch) => [launch.launch_id, launch]));
  return withLaunches(state, (launch) => byId.get(launch.launch_id) ?? launch);
}

/** The keeper may change it: nobody stopped it, and no `deploy` follows it any more. */
export function isKept({ desired, kept }: DeploymentState): boolean {
  return desired === 'serving' && kept === true;
}

/** Launches that are not over. */
export function liveLaunches(state: DeploymentState): Exclude<LaunchRecord, EndedLaunch>[] {
  return state.launches.filter((launch) => launch.phase !== 'ended');
}

/** Somebody has to look after it: it is to serve, or its jobs are still to end. */
export function isActive(state: DeploymentState): boolean {
  return state.desired === 'serving' || liveLaunches(state).length > 0;
}

/**
 * Launches the deployment is to consist of now; the superseded ones are on their way out, replacements have no place
 * yet, and those on idle nodes are there beyond it.
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

/** The state without the oldest of those launches that are replaced and over; what they used stays counted. */
export function forgetOldest(state: DeploymentState): DeploymentState {
  const ended = state.launches.filter(
    (launch): launch is EndedLaunch => launch.superseded && launch.phase === 'ended',
  );
  const oldest = ended.toSorted((a, b) => b.ended_at_ms - a.ended_at_ms).slice(endedLaunchesKept);
  if (oldest.length === 0) return state;
  const forgotten = new Set<LaunchRecord>(oldest);
  return {
    ...state,
    launches: state.launches.filter((launch) => !forgotten.has(launch)),
    gpu_hours_forgotten: oldest.reduce(
      (sum, launch) => sum + gpuHoursOf(launch),
      state.gpu_hours_forgotten ?? 0,
    ),
  };
}

/** GPUs that a job of it holds. */
export function gpusOf({ devices_per_node: { kind, count }, node_count }: PlannedLaunch): number {
  return kind === 'cpu' ? 0 : count * node_count;
}

/** None on idle nodes: the budget is that of the plan. */
function gpuHoursOf({ planned, last, ended_at_ms }: EndedLaunch): number {
  if (planned.scavenged) return 0;
  const used = { gpu_count: gpusOf(planned), started_at_ms: last.start_time_ms, ended_at_ms };
  return gpuTime_hours([used], ended_at_ms);
}
