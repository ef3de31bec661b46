/** A deployment and its jobs as a gateway tells of them: `GET /hpcserve/v1/jobs`, which the dashboard shows. */

export interface DeploymentRow {
  name: string;
  /** `serving`, or what else was asked for last. */
  desired: string;
  models: {
    name: string;
    aliases: string[];
    /** Set where it has no replica because nobody asks; the next request starts one. */
    asleep_since_ms?: number;
    /** How long its last start took. */
    wake_s?: number;
  }[];
  /** Those that are planned, wait or run, and the last few that ended; in the order in which they were made. */
  jobs: JobRow[];
}

export interface JobRow {
  /** `planned`, `submitting`, `submitted` or `ended`. */
  phase: string;
  /** On its way out: another job takes its place, or nobody wants it any more. */
  superseded: boolean;
  job_id?: string;
  /** Partition or host. */
  where?: string;
  /** In the scheduler's own word. */
  state?: string;
  /** Why it waits, in plain words and in Slurm's. */
  waits_for?: string;
  pending_reason?: string;
  submitted_at_ms?: number;
  /** Slurm's estimate, where it makes one. */
  estimated_start_ms?: number;
  start_time_ms?: number;
  /** When its wall time ends, where there is a limit. */
  end_time_limit_ms?: number;
  ended_at_ms?: number;
  nodes?: string;
  /** Why it ended, as far as that is known. */
  end_reason?: string;
}
