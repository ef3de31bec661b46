/**
 * Where jobs run: Slurm, or child processes on this machine. The reconciler knows only this interface,
 * so that both sites are followed, stopped and recovered by the same code.
 */
import type { LaunchSpec } from '../../spec/launch.ts';
import type { PlannedLaunch } from '../../spec/plan.ts';
import type { Directive } from '../../spec/slurm-types.ts';
import type { JobRun } from '../state/job-runs.ts';
import type { ArrayTask, JobSnapshot } from '../state/job-snapshot.ts';

/** A launch that was decided and written down, on its way to the runner. */
export interface PreparedLaunch {
  launch: LaunchSpec;
  planned: PlannedLaunch;
  launch_folder: string;
  /** `launch.json` in that folder. */
  launch_file: string;
}

/**
 * The script of a job, rendered once: what people are shown, what lies in the folder of the launch and what the
 * scheduler gets are this text.
 *
 *   describeLaunch ──► render ──► RenderedScript ──┬──► `render` prints it
 *                                                  └──► written to <launch>/job.sh ──► submit: that file
 *   a launch that was handed over: `render` prints <launch>/job.sh
 */
export interface RenderedScript {
  text: string;
  /** Its options and where each comes from, which a refusal names; none where no scheduler reads them. */
  directives: readonly Directive[];
}

/** Equal launches on their way to the runner as the tasks of one job array, in order. */
export interface PreparedArray {
  /** By which its job is found again; no launch has it. */
  array_id: string;
  /** Holds the script, and a link to the folder of each launch. */
  folder: string;
  launches: readonly PreparedLaunch[];
}

/** What the scheduler answered to a submission. */
export interface Submitted {
  job_id: string;
  /** Where it went (partition, host), for people. */
  where: string;
  /** What it said besides: a site's policy that lets a job in with a word of warning. */
  said?: readonly string[];
}

export interface JobRunner {
  /** `local` or `slurm`; shown to people. */
  readonly kind: 'local' | 'slurm';
  /** Least time between two polls, ms: the site decides how often its scheduler may be asked. */
  readonly poll_interval_ms: number;
  /**
   * How long after an interrupted submission its job may still turn up, ms: a submission takes at most so
   * long. Lower: quicker recovery; higher: safer with slow schedulers and login nodes that cannot see one another.
   */
  readonly settle_ms: number;
  render(prepared: PreparedLaunch): RenderedScript;
  /**
   * How many of `count` submissions the site's limits allow now, 0 to `count`; those are taken as made. The
   * others have to wait a while.
   * @param jobs that they are altogether: an array is one submission and many jobs. Default: `count`.
   * @throws E_JOBS_LIMIT where so many jobs would be too many, however long one waits.
   */
  admit(count: number, jobs?: number): Promise<number>;
  /**
   * Starts the job once.
   * @param script as it lies in the folder of the launch
   * @throws HpcserveError in the scheduler's own words; then nothing is left behind.
   */
  submit(prepared: PreparedLaunch, script: RenderedScript): Promise<Submitted>;
  /**
   * Jobs that carry this launch id, running or ended: found after a crash between submit and writing down.
   * @param array given where the launch was submitted as a task of it
   * @returns undefined while the submission itself may still be on its way.
   */
  find(launchId: string, array?: ArrayTask): Promise<string[] | undefined>;
  /**
   * Cores for a launch that no other launch has, where the runner keeps none to cores of its own; undefined where so
   * many are not free.
   */
  freeCores?(planned: PlannedLaunch): number[] | undefined;
  /** Absent where there are no job arrays. */
  readonly arrays?: JobArrays;
  /** Seconds that running answers have between the signal and the end of a job; undefined: as the agent has it. */
  drainTime_s?(planned: PlannedLaunch): Promise<number | undefined>;
  /** One batched question for all ids; one is missing in the answer where nobody can say what state it is in. */
  poll(jobs: readonly { job_id: string; launch_folder: string }[]): Promise<Map<string, JobSnapshot>>;
  /**
   * Runs that have ended, as the scheduler's accounting has them, those too that ended with the job back in the queue;
   * none where there is no accounting, or it does not know of the end yet. Numbers come round again: there may be runs
   * of earlier jobs among them.
   */
  accountedRuns?(job_ids: readonly string[]): Promise<Map<string, JobRun[]>>;
  /**
   * What of these is told by files alone, so that a scheduler that is away keeps nobody from it; only that is answered.
   */
  pollFiles?(jobs: readonly { job_id: string }[]): Map<string, JobSnapshot>;
  /** Asks the job to end; returns once the request was accepted. Ended jobs are no error. */
  cancel(job: { job_id: string; launch_folder: string }, options?: { force?: boolean }): Promise<void>;
}

/** Many small equal jobs as one: one submission, one entry in the queue while they wait, and each ends by itself. */
export interface JobArrays {
  /**
   * Which of these are best submitted together: groups of indexes into `planned`, in order. What is in none goes by
   * itself.
   * @param offline the scheduler is not asked how large an array may be
   */
  groups(planned: readonly PlannedLaunch[], offline?: boolean): Promise<number[][]>;
  render(array: PreparedArray): RenderedScript;
  /**
   * Starts the jobs once.
   * @param script as it lies in the folder of the array
   * @returns their ids, in the order of the launches.
   * @throws as `JobRunner.submit`; E_SLURM_ARRAY, E_SLURM_LIMIT where they may be taken one by one.
   */
  submit(array: PreparedArray, script: RenderedScript): Promise<SubmittedArray>;
}

export type SubmittedArray = Omit<Submitted, 'job_id'> & { job_ids: string[] };
