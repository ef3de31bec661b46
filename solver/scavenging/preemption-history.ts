/** How often jobs are preempted, from how often they were: what may be promised of replicas on idle devices. */

export interface PreemptionHistory {
  /** Preemptions seen, and the hours that jobs ran meanwhile, all jobs together. */
  preemptions: number;
  job_hours: number;
}

/**
 * Taken for seen before anything was: one preemption in so many hours. It counts as one job that ran that long, so that
 * a first preemption after a minute does not stop everything.
 */
const prior_hours = 8;

/**
 * Preemptions per second of a running job, were they to come at random (exponential lifetimes): the mean of a Gamma
 * posterior over the rate.
 */
export function preemptionRate_per_s({ preemptions, job_hours }: PreemptionHistory): number {
  return (preemptions + 1) / ((job_hours + prior_hours) * 3600);
}

/** Probability that a replica that runs now is not preempted within this time. */
export function survival(history: PreemptionHistory, seconds: number): number {
  return Math.exp(-preemptionRate_per_s(history) * seconds);
}

/**
 * Probability that at least `least` of `replicas` that run now are not preempted within this time, were they preempted
 * independently. One large job takes several at once: then it is less.
 */
export function survivalOf(
  least: number,
  replicas: number,
  history: PreemptionHistory,
  seconds: number,
): number {
  return shareAtLeast(least, replicas, survival(history, seconds));
}

/** Probability that of `replicas` independent ones, each there with probability `p`, at least `least` are there. */
export function shareAtLeast(least: number, replicas: number, p: number): number {
  if (least <= 0) return 1;
  if (least > replicas) return 0;
  if (p <= 0) return 0;
  if (p >= 1) return 1;
  // The shorter sum, by its logarithms: a first term such as 0.03²⁵⁰ is below what a double holds.
  const isUpper = replicas - least < least;
  const [from, to] = isUpper ? [least, replicas] : [0, least - 1];
  let log = logOfExactly(from, replicas, p);
  let sum = 0;
  for (let alive = from; alive <= to; alive++) {
    sum += Math.exp(log);
    log += Math.log((replicas - alive) / (alive + 1)) + Math.log(p) - Math.log1p(-p);
  }
  return Math.min(1, Math.max(0, isUpper ? sum : 1 - sum));
}

/** Logarithm of the probability that exactly `alive` of them are there; `p` is between 0 and 1. */
function logOfExactly(alive: number, replicas: number, p: number): number {
  let log = alive * Math.log(p) + (replicas - alive) * Math.log1p(-p);
  for (let chosen = 1; chosen <= alive; chosen++) log += Math.log((replicas - alive + chosen) / chosen);
  return log;
}

/**
 * Expected time of serving, and of running, of a job that loads for `load_s` and ends after `limit_s` unless it is
 * preempted before; seconds.
 */
export function expectedLife(
  rate_per_s: number,
  load_s: number,
  limit_s: number,
): { running_s: number; serving_s: number } {
  if (rate_per_s === 0) return { running_s: limit_s, serving_s: Math.max(0, limit_s - load_s) };
  const gone = (at_s: number): number => Math.exp(-rate_per_s * at_s);
  return {
    running_s: (1 - gone(limit_s)) / rate_per_s,
    serving_s: limit_s <= load_s ? 0 : (gone(load_s) - gone(limit_s)) / rate_per_s,
  };
}
