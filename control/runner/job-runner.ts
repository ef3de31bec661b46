/**
 * Where jobs run: Slurm, or child processes on this machine. The reconciler knows only this interface,
 * so that both sites are followed, stopped and recovered by the same code.
 */
import type { LaunchSpec } from '../../spec/launch.ts';
import type { PlannedLaunch } from '../../spec/plan.ts';
import type { ArrayTask, JobSnapshot } from '../state/job-snapshot.ts';

/** A launch that was decided and written down, on its way to the runner. */
export interface PreparedLaunch {
  launch: LaunchSpec;
  planned: PlannedLaunch;
  launch_folder: string;
  /** `launch.json` in that folder. */
  launch_file: string;
}

/** Equal launches on their way to the runner as the tasks of one job array, in order. */
export interface PreparedArray {
  /** By which its job is found again; no launch has it. */
  array_id: string;
  /** Holds the script, and a link to the folder of each launch. */
  folder: string;
  launches: readonly PreparedLaunch[];
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
  /** The script that `submit` hands over, whole: what `render` shows is what runs. */
  render(prepared: PreparedLaunch): string;
  /**
   * How many of `count` submissions the site's limits allow now, 0 to `count`; those are taken as made. The
   * others have to wait a while.
   * @param jobs that they are altogether: an array is one submission and many jobs. Default: `count`.
   * @throws E_JOBS_LIMIT where so many jobs would be too many, however long one waits.
   */
  admit(count: number, jobs?: number): Promise<number>;
  /**
   * Starts the job once.
   * @returns its id and where it went (partition, host), for people.
   * @throws HpcserveError in the scheduler's own words; then nothing is left behind.
   */
  submit(prepared: PreparedLaunch): Promise<{ job_id: string; where: string }>;
  /**
   * Jobs that carry this launch id and were submitted since then, running or ended: found after a crash
   * between submit and writing down.
   * @param array given where the launch was submitted as a task of it
   * @returns undefined while the submission itself may still be on its way.
   */
  find(launchId: string, since_ms: number, array?: ArrayTask): Promise<string[] | undefined>;
  /** Absent where there are no job arrays. */
  readonly arrays?: JobArrays;
  /** Seconds that running answers have between the signal and the end of a job; undefined: as the agent has it. */
  drainTime_s?(planned: PlannedLaunch): Promise<number | undefined>;
  /** One batched question for all ids; every id is answered. */
  poll(jobs: readonly { job_id: string; launch_folder: string }[]): Promise<Map<string, JobSnapshot>>;
  /** What of these is told by files alone, so that a scheduler that is away keeps nobody from it; only that is answered. */
  pollFiles?(jobs: readonly { job_id: string }[]): Map<string, JobSnapshot>;
  /** Asks the job to end; returns once the request was accepted. Ended jobs are no error. */
  cancel(job: { job_id: string; launch_folder: string }, options?: { force?: boolean }): Promise<void>;
}

/** Many small equal jobs as one: one submission, one entry in the queue while they wait, and each ends by itself. */
export interface JobArrays {
  /**
   * Which of these are best submitted together: groups of indexes into `planned`, in order. What is in none goes by itself.
   * @param offline the scheduler is not asked how large an array may be
   */
  groups(planned: readonly PlannedLaunch[], offline?: boolean): Promise<number[][]>;
  /** The script that `submit` hands over. */
  render(array: PreparedArray): string;
  /**
   * Starts the jobs once.
   * @returns their ids, in the order of the launches.
   * @throws as `JobRunner.submit`; E_SLURM_ARRAY, E_SLURM_LIMIT where they may be taken one by one.
   */
  submit(array: PreparedArray): Promise<{ job_ids: string[]; where: string }>;
}
