import type { Candidate, RoutingPolicy } from './policy.ts';

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
    choose(candidates, excluded, seed) {
      let best: (typeof candidates)[number] | undefined;
      let bestLoad = Number.POSITIVE_INFINITY;
      let equals = 0;
      for (const candidate of candidates) {
        if (excluded.length > 0 && excluded.includes(candidate.session_id)) continue;
        const requests = requestsAt(candidate);
        if (requests >= candidate.max_sequences + queue_length) continue;
        const load = requests / candidate.max_sequences;
        if (load < bestLoad) {
          best = candidate;
          bestLoad = load;
          equals = 1;
        } else if (load === bestLoad) {
          // Reservoir of one: each of the k equals is kept with probability 1/k.
          equals++;
          if (mix(seed, equals) % equals === 0) best = candidate;
        }
      }
      return best;
    },
  };
}

/** Requests that a candidate computes, has waiting, or is being sent. */
export function requestsAt(candidate: Candidate): number {
  return Math.max(0, candidate.running + candidate.waiting + candidate.unreported);
}

/** A 32-bit hash of two integers (the finalizer of MurmurHash3). */
function mix(seed: number, salt: number): number {
  let h = (seed ^ Math.imul(salt, 0x9e3779b1)) >>> 0;
  h = Math.imul(h ^ (h >>> 16), 0x85ebca6b);
  h = Math.imul(h ^ (h >>> 13), 0xc2b2ae35);
  return (h ^ (h >>> 16)) >>> 0;
}
