/** Words of Slurm that travel between rooms: durations, job states, directives. */

/**
 * A duration as Slurm writes it: `MM`, `MM:SS`, `HH:MM:SS`, `D-HH`, `D-HH:MM`, `D-HH:MM:SS`; the words for
 * "no limit" are accepted where a site reports them.
 */
export const slurmDurationPattern = /^(\d+-\d{1,2}(:\d{1,2}){0,2}|\d+(:\d{1,2}){0,2}|infinite|unlimited)$/i;

/**
 * Seconds of a Slurm duration; `Infinity` for no limit, undefined when the text is none (Slurm prints
 * `n/a`, `NOT_SET`, `INVALID` in such places).
 */
export function parseSlurmDuration_s(text: string): number | undefined {
  if (!slurmDurationPattern.test(text)) return undefined;
  if (/^(infinite|unlimited)$/i.test(text)) return Number.POSITIVE_INFINITY;
  const dash = text.indexOf('-');
  const days = dash < 0 ? 0 : Number(text.slice(0, dash));
  const parts = text
    .slice(dash + 1)
    .split(':')
    .map(Number);
  const [first = 0, second = 0, third = 0] = parts;
  // After days the first part is hours; without days, one or two parts begin with minutes.
  if (dash >= 0 || parts.length === 3) return days * 86_400 + first * 3600 + second * 60 + third;
  return first * 60 + second;
}

/** The longest form Slurm takes everywhere: `HH:MM:SS`, or `D-HH:MM:SS` from a day on. */
export function formatSlurmDuration(seconds: number): string {
  if (!Number.isFinite(seconds)) return 'UNLIMITED';
  const whole = Math.max(0, Math.ceil(seconds));
  const two = (value: number): string => String(value).padStart(2, '0');
  const days = Math.floor(whole / 86_400);
  const clock = [Math.floor(whole / 3600) % 24, Math.floor(whole / 60) % 60, whole % 60].map(two).join(':');
  return days > 0 ? `${days}-${clock}` : clock;
}

/** Base states of a job, by Slurm's names (20.11 to 25.x). */
export const jobStates = [
  'PENDING',
  'RUNNING',
  'SUSPENDED',
  'COMPLETING',
  'CONFIGURING',
  'STAGE_OUT',
  'SIGNALING',
  'STOPPED',
  'RESIZING',
  'REQUEUED',
  'REQUEUE_HOLD',
  'REQUEUE_FED',
  'SPECIAL_EXIT',
  'RESV_DEL_HOLD',
  'REVOKED',
  'POWER_UP_NODE',
  'EXPEDITING',
  'COMPLETED',
  'CANCELLED',
  'FAILED',
  'TIMEOUT',
  'NODE_FAIL',
  'PREEMPTED',
  'BOOT_FAIL',
  'DEADLINE',
  'OUT_OF_MEMORY',
  /** In the place of a word that this version does not know. */
  'UNKNOWN',
] as const;
export type JobState = (typeof jobStates)[number];

/** What a state means for someone who waits for the job; of an unknown one nothing follows. */
export type SlurmJobPhase = 'waiting' | 'running' | 'ending' | 'ended' | 'unknown';

export function jobPhase(state: JobState): SlurmJobPhase {
  switch (state) {
    case 'PENDING':
    case 'CONFIGURING':
    case 'POWER_UP_NODE':
    case 'REQUEUED':
    case 'REQUEUE_HOLD':
    case 'REQUEUE_FED':
    case 'SPECIAL_EXIT':
    case 'RESV_DEL_HOLD':
    case 'EXPEDITING':
      return 'waiting';
    case 'RUNNING':
    case 'SUSPENDED':
    case 'STOPPED':
    case 'SIGNALING':
    case 'RESIZING':
      return 'running';
    case 'COMPLETING':
    case 'STAGE_OUT':
      return 'ending';
    case 'UNKNOWN':
      return 'unknown';
    default:
      return 'ended';
  }
}

/** One job (or array task, or component of a heterogeneous job) as Slurm reports it. */
export interface JobInfo {
  /** The job's own number. */
  job_id: string;
  /** The number sbatch returned: the array's or the heterogeneous job's; else the same as `job_id`. */
  base_job_id: string;
  /** Index or index range of an array job, such as `3` or `4-9%2`. */
  array_task?: string;
  /** Offset of a component of a heterogeneous job. */
  het_offset?: number;
  state: JobState;
  phase: SlurmJobPhase;
  /** Slurm's reason word; absent when there is none. */
  reason?: string;
  name: string;
  user: string;
  account?: string;
  qos?: string;
  partition: string;
  comment?: string;
  /** Slurm's compact node list, such as `gh[1-2]`; empty while it waits. */
  node_list: string;
  nodes: string[];
  submit_time_ms?: number;
  /** When it started, or, while it waits, when Slurm expects it to. */
  start_time_ms?: number;
  start_is_estimate: boolean;
  end_time_ms?: number;
  time_limit_s?: number;
  /** How often it was requeued. */
  restart_count?: number;
  exit_code?: number;
  /** Signal that ended it, when one did. */
  exit_signal?: number;
  /** Where the facts come from: the queue, the controller's memory of ended jobs, or the accounting database. */
  source: 'squeue' | 'scontrol' | 'sacct';
}

/** One `#SBATCH` option with the place that asked for it, so that a refusal can name that place. */
export interface Directive {
  /** The long option without dashes: `partition`, `gres`. */
  name: string;
  /** Absent for options without a value, such as `requeue`. */
  value?: string;
  /** Where it comes from, for people: `site.yaml:12:7 slurm.defaults.partition`, or `hpcserve`. */
  source: string;
}
