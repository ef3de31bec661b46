/**
 * What `deployment.json` holds of one launch: a record with other fields in each phase. What moves it from one phase to
 * the next is in `launch-transitions.ts`.
 *
 *            submitting()              submitted(), adopted()           ended()
 *   planned ──────────────► submitting ──────────────────────► submitted ──────────► ended
 *     │  ▲                   │ │ ▲  │                            │   ▲                ▲ │ ▲
 *     │  └── takenApart() ───┘ │ └──┘ no job of it turned up:    └───┘                │ └─┘ givenUp()
 *     │                        │      submitting() again         withNews(), served(),│
 *     │                        │                                 cancelRequested(), … │
 *     └────────────────────────┴───── refused(); ended(): nobody wants it any more ───┘
 *
 * Beside the phase, whatever it is: `superseded` (on its way out: another one takes its place, or nobody wants it any
 * more) and `instead_of` (a replacement that has no place yet; `reconcile/replacements.ts` settles which of the two it
 * gets).
 */
import { z } from 'zod';
import { launchSchema } from '../../spec/launch.ts';
import type { PlannedLaunch } from '../../spec/plan.ts';
import { arrayTaskSchema, jobSnapshotSchema } from './job-snapshot.ts';

/** In every phase. */
const common = {
  launch_id: launchSchema.shape.launch_id,
  /** Equal for launches that run the same thing: an unchanged one is kept when the deployment changes. */
  fingerprint: z.string(),
  planned: z.custom<PlannedLaunch>(
    (value) => typeof value === 'object' && value !== null && 'units' in value,
  ),
  /** Replaced by launches of a later generation; cancelled once those serve. */
  superseded: z.boolean().default(false),
  /** Superseded by what needs its devices: it goes before that serves. */
  yields: z.literal(true).optional(),
  /** It is to take the place of this launch, which waits in the queue. Absent once it has. */
  instead_of: z.string().optional(),
  /** Launches in its place before it that came to nothing, one after the other. */
  tries: z.int().min(0).optional(),
};

/** Since it was handed to the scheduler. */
const submission = {
  submitting_since_ms: z.number(),
  /** Submitted as this task of a job array. */
  array: arrayTaskSchema.optional(),
};

/** Since the scheduler has it. */
const job = {
  job_id: z.string(),
  /** Partition or host; absent where its job was found again. */
  where: z.string().optional(),
  cancel_requested_ms: z.number().optional(),
  /** When the keeper first saw all its replicas serve. */
  served_at_ms: z.number().optional(),
};

/** Decided, nothing done. */
const plannedSchema = z.object({ ...common, phase: z.literal('planned') });
/** Written down; the scheduler may or may not have it. */
const submittingSchema = z.object({ ...common, phase: z.literal('submitting'), ...submission });
/** It has a job id. */
const submittedSchema = z.object({
  ...common,
  phase: z.literal('submitted'),
  ...submission,
  ...job,
  /** The last known state of its job. */
  last: jobSnapshotSchema.optional(),
});
/** Its job is over, or it never became one: what there is of a submission and a job stays. */
const endedSchema = z.object({
  ...common,
  phase: z.literal('ended'),
  ...z.object({ ...submission, ...job }).partial().shape,
  /** How it ended. */
  last: jobSnapshotSchema,
  ended_at_ms: z.number(),
  /** Why nothing more is started in its place. */
  given_up: z.string().optional(),
});

export const launchRecordSchema = z.discriminatedUnion('phase', [
  plannedSchema,
  submittingSchema,
  submittedSchema,
  endedSchema,
]);

type Ended = z.infer<typeof endedSchema>;
/** Fields of other phases read as undefined. */
type Phase<Own> = Readonly<Own & { [Key in Exclude<keyof Ended, keyof Own>]?: undefined }>;

export type PlannedLaunchRecord = Phase<z.infer<typeof plannedSchema>>;
export type SubmittingLaunch = Phase<z.infer<typeof submittingSchema>>;
export type SubmittedLaunch = Phase<z.infer<typeof submittedSchema>>;
export type EndedLaunch = Phase<Ended>;
export type LaunchRecord = PlannedLaunchRecord | SubmittingLaunch | SubmittedLaunch | EndedLaunch;

/**
 * @throws where the launch is in another phase than the one it was decided on: a bug, for nobody else holds its lock
 */
export function inPhase<Phase extends LaunchRecord['phase']>(
  launch: LaunchRecord | undefined,
  ...phases: Phase[]
): Extract<LaunchRecord, { phase: Phase }> {
  if (launch && (phases as string[]).includes(launch.phase))
    return launch as Extract<LaunchRecord, { phase: Phase }>;
  throw new Error(`launch ${launch?.launch_id} is ${launch?.phase ?? 'gone'}, not ${phases.join(' or ')}`);
}
