/** Closed forms of queueing theory: how long requests wait, and which share of them waits longer than that. */

/** A time that is 0 with probability 1 − `probability`, and otherwise exponential with this mean. */
export interface Wait {
  probability: number;
  /** Mean of the waits above 0, in seconds. */
  mean_s: number;
}

/**
 * Span over which a queue is looked at that has no steady state: what plans are made for, and long against
 * any request. Higher: overload counts for more.
 */
export const horizon_s = 3600;

/**
 * Waiting for a place that becomes free `leaving_per_s` times a second when all are taken, which is so with
 * this probability: waits of M/M/c have mean 1 / (leaving (1 − u)). Near saturation the queue does not settle
 * within the horizon H: it grows like reflected Brownian motion, (2/3) √(4 λ H / π) requests on average.
 */
export function settlingWait(
  all_taken: number,
  leaving_per_s: number,
  utilization: number,
  rate_per_s: number,
): Wait {
  if (rate_per_s <= 0) return { probability: 0, mean_s: 0 };
  const settling = (2 / 3) * Math.sqrt((4 * horizon_s) / (Math.PI * rate_per_s));
  const drain = leaving_per_s * (1 - Math.min(1, utilization));
  return { probability: all_taken, mean_s: 1 / (drain + 1 / settling) };
}

export function meanWait({ probability, mean_s }: Wait): number {
  return probability * mean_s;
}

/** Share of sums of two independent waits that is longer than `seconds` (hypoexponential with atoms at 0). */
export function waitsLonger(a: Wait, b: Wait, seconds: number): number {
  if (seconds < 0) return 1;
  const alone = ({ probability, mean_s }: Wait): number =>
    mean_s > 0 ? probability * Math.exp(-seconds / mean_s) : 0;
  const both = a.probability * b.probability;
  const longer =
    alone(a) * (1 - b.probability) +
    alone(b) * (1 - a.probability) +
    both * sumTail(a.mean_s, b.mean_s, seconds);
  return Math.min(1, longer);
}

/** P(A + B > x) for exponential A and B with these means. */
function sumTail(a: number, b: number, x: number): number {
  const large = Math.max(a, b);
  const small = Math.min(a, b);
  if (large <= 0) return 0;
  if (small < 1e-9 * large) return Math.exp(-x / large);
  // Equal means are the limit; the difference quotient loses its digits there.
  if (large - small < 1e-6 * large) return (1 + x / large) * Math.exp(-x / large);
  return (large * Math.exp(-x / large) - small * Math.exp(-x / small)) / (large - small);
}

/** Share of a Gamma distribution with this mean and variance at or below `x` (Wilson and Hilferty, PNAS 1931). */
export function gammaShareBelow(x: number, mean: number, variance: number): number {
  if (x < 0) return 0;
  if (mean <= 0 || variance <= 0) return x >= mean ? 1 : 0;
  const shape = mean ** 2 / variance;
  return normalShareBelow((Math.cbrt(x / mean) - (1 - 1 / (9 * shape))) * Math.sqrt(9 * shape));
}

/** Φ, with an error below 8·10⁻⁸ (Abramowitz and Stegun 26.2.17). */
export function normalShareBelow(z: number): number {
  const t = 1 / (1 + 0.2316419 * Math.abs(z));
  const tail =
    (Math.exp(-(z * z) / 2) / Math.sqrt(2 * Math.PI)) *
    t *
    (0.31938153 + t * (-0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429))));
  return z >= 0 ? 1 - tail : tail;
}
