/**
 * Where jobs run: Slurm, or child processes on this machine. The reconciler knows only this interface,
 * so that both sites are followed, stopped and recovered by the same code.
 */
import type { LaunchSpec } from '../spec/launch.ts';
import type { PlannedLaunch } from '../spec/plan.ts';

/** A launch that was decided and written down, on its way to the runner. */
export interface PreparedLaunch {
  launch: LaunchSpec;
  planned: PlannedLaunch;
  launch_folder: string;
  /** `launch.json` in that folder. */
  launch_file: string;
}

export type JobPhase =
  /** Known to the scheduler, not started. */
  | 'pending'
  | 'running'
  /** Ending: signalled, cleaning up. */
  | 'completing'
  /** Ended; `state`, `exit_code`, `reason` say how. */
  | 'ended'
  /** The runner has no memory of it (accounting off and the job purged). */
  | 'unknown';

export interface JobSnapshot {
  job_id: string;
  phase: JobPhase;
  /** The runner's own word: PENDING, RUNNING, CANCELLED by 1000, FAILED, … */
  state: string;
  /** Why it waits, in Slurm's word and in plain words. */
  pending?: { reason: string; explanation: string };
  estimated_start_ms?: number;
  start_time_ms?: number;
  /** When its wall time ends, where there is a limit. */
  end_time_limit_ms?: number;
  nodes?: string;
  exit_code?: number;
  signal?: number;
  /** Why it ended, as far as the runner knows. */
  reason?: string;
  /** Times it went back into the queue. */
  restart_count?: number;
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
   * @throws E_JOBS_LIMIT where so many jobs would be too many, however long one waits.
   */
  admit(count: number): Promise<number>;
  /**
   * Starts the job once.
   * @returns its id and where it went (partition, host), for people.
   * @throws HpcserveError in the scheduler's own words; then nothing is left behind.
   */
  submit(prepared: PreparedLaunch): Promise<{ job_id: string; where: string }>;
  /**
   * Jobs that carry this launch id and were submitted since then, running or ended: found after a crash
   * between submit and writing down.
   * @returns undefined while the submission itself may still be on its way.
   */
  find(launchId: string, since_ms: number): Promise<string[] | undefined>;
  /** Seconds that running answers have between the signal and the end of a job; undefined: as the agent has it. */
  drainTime_s?(planned: PlannedLaunch): Promise<number | undefined>;
  /** One batched question for all ids; every id is answered. */
  poll(jobs: readonly { job_id: string; launch_folder: string }[]): Promise<Map<string, JobSnapshot>>;
  /** Asks the job to end; returns once the request was accepted. Ended jobs are no error. */
  cancel(job: { job_id: string; launch_folder: string }, options?: { force?: boolean }): Promise<void>;
}
