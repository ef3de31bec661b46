/**
 * What may become of a launch, each a pure function from its record before to the one after: the picture is in
 * `launch-record.ts`. Nothing else makes or changes such a record.
 */
import type { PlannedLaunch } from '../../spec/plan.ts';
import type { ArrayTask, JobSnapshot } from './job-snapshot.ts';
import type {
  EndedLaunch,
  LaunchRecord,
  PlannedLaunchRecord,
  SubmittedLaunch,
  SubmittingLaunch,
} from './launch-record.ts';

/** A launch that was decided on just now. */
export function newLaunch(
  launch_id: string,
  fingerprint: string,
  planned: PlannedLaunch,
  more: Pick<LaunchRecord, 'instead_of' | 'tries'> = {},
): PlannedLaunchRecord {
  return { launch_id, phase: 'planned', fingerprint, planned, superseded: false, ...more };
}

/** Another launch of the same, in the place of one that ends or has ended. */
export function successorOf(
  { fingerprint, planned }: LaunchRecord,
  launch_id: string,
  tries?: number,
): PlannedLaunchRecord {
  return newLaunch(launch_id, fingerprint, planned, { tries });
}

/**
 * The intent to submit it, alone or as a task of an array; it may have been tried before.
 * @param array absent: it goes by itself, whatever was tried before
 */
export function submitting(
  launch: PlannedLaunchRecord | SubmittingLaunch,
  now_ms: number,
  array?: ArrayTask,
): SubmittingLaunch {
  return { ...launch, phase: 'submitting', submitting_since_ms: now_ms, array };
}

/** The scheduler refused the array that it was a task of: it is to be submitted by itself. */
export function takenApart({
  submitting_since_ms: _,
  array: __,
  ...launch
}: SubmittingLaunch): PlannedLaunchRecord {
  return { ...launch, phase: 'planned' };
}

/** The scheduler has it. */
export function submitted(launch: SubmittingLaunch, job_id: string, where: string): SubmittedLaunch {
  return { ...launch, phase: 'submitted', job_id, where };
}

/** The job of an interrupted submission was found. */
export function adopted(launch: SubmittingLaunch, job_id: string): SubmittedLaunch {
  return { ...launch, phase: 'submitted', job_id };
}

/** The job's state is not the one written down before. */
export function withNews(launch: SubmittedLaunch, news: JobSnapshot): SubmittedLaunch {
  if (news.phase !== 'completing') return { ...launch, last: news };
  // Of a job that goes back into the queue Slurm tells now when it expects the next run to begin.
  return { ...launch, last: { ...news, start_time_ms: launch.last?.start_time_ms } };
}

/** All its replicas serve. */
export function served(launch: SubmittedLaunch, now_ms: number): SubmittedLaunch {
  return { ...launch, served_at_ms: now_ms };
}

/** The scheduler is about to be asked to end it; when it was asked first counts. */
export function cancelRequested(launch: SubmittedLaunch, now_ms: number): SubmittedLaunch {
  return { ...launch, cancel_requested_ms: launch.cancel_requested_ms ?? now_ms };
}

/** Nobody heard the request: the next command asks at once, instead of waiting for it to take effect. */
export function cancelUnheard(launch: SubmittedLaunch): SubmittedLaunch {
  return { ...launch, cancel_requested_ms: undefined };
}

/** Its job is over, or it never became one. */
export function ended(launch: LaunchRecord, last: JobSnapshot, now_ms: number): EndedLaunch {
  return { ...launch, phase: 'ended', last, ended_at_ms: now_ms };
}

/** The scheduler refused it. */
export function refused(launch: LaunchRecord, reason: string, now_ms: number): EndedLaunch {
  return ended(launch, { job_id: '', phase: 'ended', state: 'REFUSED', reason }, now_ms);
}

/** Nothing more is started in its place. */
export function givenUp(launch: EndedLaunch, because: string): EndedLaunch {
  return { ...launch, given_up: because };
}

/** It is on its way out. */
export function superseded<Launch extends LaunchRecord>(launch: Launch): Launch {
  return { ...launch, superseded: true };
}

/** It is on its way out at once: what takes its place has no other room. */
export function yielding<Launch extends LaunchRecord>(launch: Launch): Launch {
  return { ...launch, superseded: true, yields: true };
}

/** It is wanted again: the change that would have replaced it failed. */
export function wantedAgain<Launch extends LaunchRecord>(launch: Launch): Launch {
  return { ...launch, superseded: false, yields: undefined };
}

/** A replacement got the place of the launch that waited. */
export function tookPlace<Launch extends LaunchRecord>(launch: Launch): Launch {
  return { ...launch, instead_of: undefined };
}
