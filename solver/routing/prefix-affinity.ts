import { type Candidate, type PromptKeys, requestsAt } from './candidate.ts';
import { emptyHash, extendHash, mix } from './hash.ts';

/** How full a replica may become by affinity. */
export interface AffinityBound {
  /**
   * How much fuller than the mean: c of Mirrokni et al. Lower: loads stay even; higher: more prompts find their
   * beginning computed.
   */
  over_mean: number;
  /**
   * Up to this share of its sequences a replica is never too full, as with few requests the mean says little. Lower:
   * loads stay even; higher: bursts of one beginning stay together.
   */
  always_share: number;
  /** … and at most so many requests: large GPUs take a thousand sequences, and the others would have none. */
  always_max: number;
}

/** Hashing says where, and knows nothing of what is held. */
const byHashing: AffinityBound = { over_mean: 1.25, always_share: 0.25, always_max: 4 };

/**
 * Whether a replica may take one more by affinity: none is overrun for a beginning that all prompts share.
 *
 * @param ofAll all that share the load, whether or not they have room
 */
export function isWithin(
  { over_mean, always_share, always_max }: AffinityBound,
  ofAll: readonly Candidate[],
): (candidate: Candidate) => boolean {
  let requests = 1;
  let places = 0;
  for (const candidate of ofAll) {
    requests += requestsAt(candidate);
    places += candidate.max_sequences;
  }
  return (candidate) => {
    const { max_sequences } = candidate;
    const always = Math.min(always_max, max_sequences * always_share);
    const bound = Math.ceil(Math.max(always, (max_sequences * over_mean * requests) / places));
    return requestsAt(candidate) < bound;
  };
}

/**
 * Rendezvous hashing (Thaler and Ravishankar 1998) with bounded loads (Mirrokni, Thorup and Zadimoghaddam 2018): every
 * gateway finds the same replica for the same beginning without a word between them, a replica that comes or goes moves
 * only its own prompts, and none is overrun for a beginning that all prompts share. What does not fit goes where the
 * rest of its conversation goes.
 *
 * @param candidates those with room for one more
 * @param ofAll all that share the load, whether or not they have room
 */
export function byPrefix<T extends Candidate>(
  candidates: readonly T[],
  ofAll: readonly Candidate[],
  prompt: PromptKeys,
): T | undefined {
  const hasRoom = isWithin(byHashing, ofAll);
  let home: T | undefined;
  let homeWeight = -1;
  for (const candidate of candidates) {
    const weight = prefixWeight(candidate, prompt.prefix);
    if (weight > homeWeight) {
      home = candidate;
      homeWeight = weight;
    }
  }
  if (home && hasRoom(home)) return home;
  let other: T | undefined;
  let otherWeight = -1;
  for (const candidate of candidates) {
    if (candidate === home || !hasRoom(candidate)) continue;
    const weight = prefixWeight(candidate, prompt.conversation);
    if (weight > otherWeight) {
      other = candidate;
      otherWeight = weight;
    }
  }
  return other;
}

/** Of a candidate for a prompt, in rendezvous hashing: the one with the most has it. */
export function prefixWeight({ session_id }: Candidate, key: number): number {
  return mix(extendHash(emptyHash, session_id, 0, session_id.length), key);
}
