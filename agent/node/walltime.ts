/** Slurm looks only so often which jobs to warn: the warning may come so much before its time, ms. */
const warning_early_ms = 60_000;

export interface WalltimeWarning {
  /** When the job's time limit ends, by Slurm's clock; absent where Slurm does not say. */
  job_end_time_ms?: number;
  /** So long before the limit the job is warned, or a minute earlier. */
  warned_before_s?: number;
  /** When the warning came, by this node's clock. */
  now_ms: number;
}

/**
 * Time until the limit of a job that is being warned, ms. A warning that by this node's clock comes at another time
 * than Slurm's means that the clock is wrong: then the warning itself says how long there is at least.
 */
export function walltimeLeft_ms({ job_end_time_ms, warned_before_s = 0, now_ms }: WalltimeWarning): number {
  const warned_ms = warned_before_s * 1000;
  if (job_end_time_ms === undefined) return warned_ms;
  const left_ms = job_end_time_ms - now_ms;
  const isPlausible = Math.abs(left_ms - warned_ms - warning_early_ms / 2) <= warning_early_ms;
  return warned_ms === 0 || isPlausible ? left_ms : warned_ms;
}
