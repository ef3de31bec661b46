import { type Candidate, requestsAt } from './candidate.ts';

/** Bounds: a client must not come back at once, nor be sent away for longer than an estimate is worth. */
const retry_min_s = 1;
const retry_max_s = 120;

/**
 * When a full set of replicas takes requests again, in whole seconds. A replica that computes c sequences at once,
 * each for D seconds, ends c/D requests a second (Little's law), so its first free place is
 * (requests − places + 1) · D / c away; the nearest one counts.
 *
 * @param queue_length requests that may wait at a candidate: as the policy has it, or as many as are ended within
 *   the longest wait that is allowed
 * @param serviceTime_s mean time of an answer of a candidate's model
 */
export function retryAfter_s<T extends Candidate>(
  candidates: readonly T[],
  queue_length: (candidate: T) => number,
  serviceTime_s: (candidate: T) => number,
): number {
  let nearest_s = retry_max_s;
  for (const candidate of candidates) {
    const excess = requestsAt(candidate) - candidate.max_sequences - queue_length(candidate) + 1;
    nearest_s = Math.min(nearest_s, (excess * serviceTime_s(candidate)) / candidate.max_sequences);
  }
  return Math.max(retry_min_s, Math.ceil(nearest_s));
}
