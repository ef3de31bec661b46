/**
 * The heart of the reconciler as pure functions: what was asked for and what is there in, actions out.
 * Nothing here looks at a clock, a disk or a scheduler, so every situation can be put in a test.
 */
import { type PlannedLaunch, unitsOfJob } from '../../spec/plan.ts';
import { type DeploymentState, liveLaunches, wantedLaunches } from '../state/deployment-state.ts';
import type { JobSnapshot } from '../state/job-snapshot.ts';
import { joinedJob } from '../state/joined-job-id.ts';
import type { LaunchRecord, SubmittedLaunch, SubmittingLaunch } from '../state/launch-record.ts';
import { newLaunch, superseded } from '../state/launch-transitions.ts';
import { withGroups } from '../state/pipeline-groups.ts';
import { isOfUse } from './replacements.ts';

/** What was seen of one launch just now. */
export interface LaunchStatus {
  job?: JobSnapshot;
  /** Jobs that carry this launch id, where the scheduler was asked (phase submitting). */
  found_jobs?: string[];
  /** Units that serve now; of a job that computes a part of one, that one too. */
  serving_units: string[];
}

export interface DecideInput {
  state: DeploymentState;
  statuses: ReadonlyMap<string, LaunchStatus>;
  now_ms: number;
  timing: DecideTiming;
  /** Launches whose node is lost, with what says so: nobody waits until the scheduler has noticed. */
  lost?: ReadonlyMap<string, string>;
}

/** In the place of the scheduler's word for how a job ended whose node was lost. */
export const nodeLost = 'NODE_LOST';

export interface DecideTiming {
  /** How long after an interrupted submission a job may still turn up, ms; see `JobRunner.settle_ms`. */
  settle_ms: number;
  /** After how long a cancellation is repeated with force, ms. */
  force_after_ms: number;
}

/** A cancelled job has Slurm's KillWait (30 s) before it is asked for again. */
export const forceAfter_ms = 45_000;

/**
 * How long Slurm may take to clean up after a job that is over, ms: a process that cannot be killed (a filesystem that
 * hangs) keeps it COMPLETING until somebody reboots the node. Lower: its place is given to another sooner; higher: long
 * epilogs end first.
 */
export const completing_ms_max = 10 * 60_000;

export type Action =
  | { do: 'submit'; launch_id: string }
  /** A job that an interrupted command submitted: write its id down. */
  | { do: 'adopt'; launch_id: string; job_id: string }
  /** Look again: the scheduler may not know the job yet. */
  | { do: 'wait'; launch_id: string; until_ms: number }
  | { do: 'cancel'; launch_id: string; job_id: string; force: boolean }
  /** A second job with the same launch id: must not run. */
  | { do: 'cancel_extra'; launch_id: string; job_id: string }
  /** The job's state is not the one written down: others read it there (the gateway, for its 503). */
  | { do: 'record_news'; launch_id: string; last: JobSnapshot }
  /** The job is over (or never was): write that down. */
  | { do: 'record_end'; launch_id: string; last: JobSnapshot };

export function decide(input: DecideInput): Action[] {
  const { state, statuses } = input;
  const actions: Action[] = [];
  const allServe = wantedLaunches(state).every((launch) => isServing(launch, statuses.get(launch.launch_id)));
  const awaited = new Set(wantedLaunches(state).flatMap((launch) => joinedNodeOf(launch) ?? []));
  for (const launch of liveLaunches(state)) {
    const status = statuses.get(launch.launch_id);
    const node = joinedNodeOf(launch);
    // A joined node runs one launch at a time: its successor there would wait for it, and it for its successor.
    const inTheWay = node !== undefined && awaited.has(node);
    // What is replaced goes on as long as it serves and its successors do not.
    const ends = allServe || inTheWay || launch.yields === true;
    const useless = launch.superseded && (ends || (status?.serving_units.length ?? 0) === 0);
    const pointless =
      launch.instead_of !== undefined &&
      !isOfUse(launch, state, (each) => (statuses.get(each.launch_id)?.job ?? each.last)?.phase);
    actions.push(...decideLaunch(launch, status, state.desired === 'stopped' || useless || pointless, input));
  }
  return actions;
}

/** The joined node that was told to run it, and has not ended it. */
function joinedNodeOf({ phase, job_id }: LaunchRecord): string | undefined {
  return phase === 'submitted' && job_id !== undefined ? joinedJob(job_id)?.node : undefined;
}

function decideLaunch(
  launch: LaunchRecord,
  status: LaunchStatus | undefined,
  unwanted: boolean,
  { now_ms, timing, lost }: DecideInput,
): Action[] {
  const { launch_id } = launch;
  switch (launch.phase) {
    case 'planned':
      return unwanted || launch.superseded
        ? [{ do: 'record_end', launch_id, last: neverSubmitted }]
        : [{ do: 'submit', launch_id }];
    case 'submitting':
      return decideInterrupted(launch, status, unwanted, now_ms, timing);
    case 'submitted': {
      const job = status?.job;
      if (!job) return [];
      if (job.phase === 'ended') return [{ do: 'record_end', launch_id, last: job }];
      // Slurm forgot the job and keeps no accounting: it is over, and nobody can say how.
      if (job.phase === 'unknown') return [{ do: 'record_end', launch_id, last: { ...job, phase: 'ended' } }];
      // Ended as below: Slurm does not put it back into the queue then, should its node come back.
      if (isStuck(job, now_ms))
        return [
          {
            do: 'record_end',
            launch_id,
            last: { ...job, phase: 'ended', reason: 'its nodes do not let go of it', presumed: true },
          },
        ];
      const reason = lost?.get(launch_id);
      // Ended first, so that neither a node that comes back nor a requeue runs it beside its successor.
      if (reason !== undefined && job.phase === 'running')
        return [
          {
            do: 'record_end',
            launch_id,
            last: { ...job, phase: 'ended', state: nodeLost, reason, presumed: true },
          },
        ];
      const news: Action[] = isNews(launch.last, job) ? [{ do: 'record_news', launch_id, last: job }] : [];
      return unwanted ? [...news, ...decideCancel(launch, now_ms, timing)] : news;
    }
    case 'ended':
      return [];
  }
}

function isStuck({ phase, ended_at_ms }: JobSnapshot, now_ms: number): boolean {
  return phase === 'completing' && ended_at_ms !== undefined && now_ms - ended_at_ms >= completing_ms_max;
}

/** What people wait for: where the job stands, why it waits, when it may start. */
function isNews(before: JobSnapshot | undefined, now: JobSnapshot): boolean {
  return (
    before?.phase !== now.phase ||
    before.state !== now.state ||
    // It went back into the queue and started again, and nobody looked meanwhile.
    (now.phase === 'running' && before.start_time_ms !== now.start_time_ms) ||
    before.pending?.reason !== now.pending?.reason ||
    before.estimated_start_ms !== now.estimated_start_ms
  );
}

/** A launch whose command died between writing the intent down and writing the job id down. */
function decideInterrupted(
  launch: SubmittingLaunch,
  status: LaunchStatus | undefined,
  unwanted: boolean,
  now_ms: number,
  timing: DecideTiming,
): Action[] {
  const { launch_id } = launch;
  const found = status?.found_jobs;
  const settled = launch.submitting_since_ms + timing.settle_ms;
  if (!found) return [{ do: 'wait', launch_id, until_ms: settled }];
  const [first, ...extra] = found;
  if (first !== undefined)
    return [
      { do: 'adopt', launch_id, job_id: first },
      ...extra.map((job_id): Action => ({ do: 'cancel_extra', launch_id, job_id })),
    ];
  if (now_ms < settled) return [{ do: 'wait', launch_id, until_ms: settled }];
  return unwanted || launch.superseded
    ? [{ do: 'record_end', launch_id, last: neverSubmitted }]
    : [{ do: 'submit', launch_id }];
}

function decideCancel(
  { launch_id, job_id, cancel_requested_ms }: SubmittedLaunch,
  now_ms: number,
  timing: DecideTiming,
): Action[] {
  if (cancel_requested_ms === undefined) return [{ do: 'cancel', launch_id, job_id, force: false }];
  if (now_ms - cancel_requested_ms < timing.force_after_ms) return [];
  return [{ do: 'cancel', launch_id, job_id, force: true }];
}

/** What is recorded for a launch that never became a job. */
const neverSubmitted: JobSnapshot = {
  job_id: '',
  phase: 'ended',
  state: 'NEVER_SUBMITTED',
  reason: 'it was not submitted',
};

/** Whether all units of a launch serve. */
function isServing(launch: LaunchRecord, status: LaunchStatus | undefined): boolean {
  if (launch.phase !== 'submitted' || !status) return false;
  const serving = new Set(status.serving_units);
  return unitsOfJob(launch.planned).every((unit) => serving.has(unit.unit));
}

/**
 * Brings a plan into the state: launches that run the same thing already are kept, others of the old plan
 * are superseded, new ones are added as planned. Ended launches are dropped from the wanted ones.
 * @param newLaunchId called once for each new launch, with its place in the plan.
 * @returns the new list of launches.
 */
export function mergePlan(
  current: readonly LaunchRecord[],
  plan: readonly PlannedLaunch[],
  fingerprint: (launch: PlannedLaunch) => string,
  newLaunchId: (fingerprint: string, index: number) => string,
): LaunchRecord[] {
  const kept = new Map<string, LaunchRecord[]>();
  for (const launch of current) {
    if (launch.phase === 'ended' || launch.superseded || launch.cancel_requested_ms !== undefined) continue;
    if (launch.instead_of !== undefined) continue;
    kept.set(launch.fingerprint, [...(kept.get(launch.fingerprint) ?? []), launch]);
  }
  const wanted = plan.map((launch, index): LaunchRecord => {
    const print = fingerprint(launch);
    return kept.get(print)?.shift() ?? newLaunch(newLaunchId(print, index), print, launch);
  });
  const wantedIds = new Set(wanted.map((launch) => launch.launch_id));
  const rest = current.filter((launch) => !wantedIds.has(launch.launch_id)).map(superseded);
  const known = new Set(current.map((launch) => launch.launch_id));
  return [...withGroups(wanted, ({ launch_id }) => known.has(launch_id)), ...rest];
}
