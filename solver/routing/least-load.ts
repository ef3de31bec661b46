import { type Candidate, type RoutingPolicy, requestsAt } from './candidate.ts';
import { mix } from './hash.ts';

/**
 * The replica with the least load: (running + waiting) / max_sequences, so that a large one takes more; among
 * equals, one by seed.
 *
 * @param queue_length requests that may wait at one replica beyond those it computes. Lower: refusals come
 *   sooner and waits stay short; higher: bursts are absorbed.
 */
export function leastLoad(queue_length: number): RoutingPolicy {
  return {
    queue_length,
    choose: (candidates, _request, excluded, seed) =>
      leastOf(
        candidates,
        (candidate) => {
          if (excluded.length > 0 && excluded.includes(candidate.session_id)) return undefined;
          const requests = requestsAt(candidate);
          if (requests >= candidate.max_sequences + queue_length) return undefined;
          return requests / candidate.max_sequences;
        },
        seed,
      ),
  };
}

/** The candidate with the least cost, one by seed among equals; `undefined` takes one out. */
export function leastOf<T extends Candidate>(
  candidates: readonly T[],
  costOf: (candidate: T) => number | undefined,
  seed: number,
): T | undefined {
  let best: T | undefined;
  let least = Number.POSITIVE_INFINITY;
  let equals = 0;
  for (const candidate of candidates) {
    const cost = costOf(candidate);
    if (cost === undefined) continue;
    if (best === undefined || cost < least) {
      best = candidate;
      least = cost;
      equals = 1;
    } else if (cost === least) {
      // Reservoir of one: each of the k equals is kept with probability 1/k.
      equals++;
      if (mix(seed, equals) % equals === 0) best = candidate;
    }
  }
  return best;
}
