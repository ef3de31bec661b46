import { fastExp } from './fast-exp.ts';
import { selectTop } from './select-top.ts';

/**
 * Tokens still in play, in ascending order of their id, with weights proportional to their probability.
 * The order makes a draw independent of how a filter found its set.
 */
export interface Candidates {
  count: number;
  /** Shape [n_vocab], `count` used. */
  tokens: Int32Array;
  /** Shape [n_vocab], `count` used: exp((logit − largest) / temperature), so the best has 1. */
  weights: Float64Array;
}

/** Buffers for one thread; samplers of a thread never run at the same time, so they share them. */
export function allocateCandidates(n_vocab: number): Candidates {
  return { count: 0, tokens: new Int32Array(n_vocab), weights: new Float64Array(n_vocab) };
}

/**
 * Fills the candidates from logits: the top_k largest, or all where top_k is 0. Tokens masked with
 * −∞ (and NaN, which no healthy model computes) are left out.
 *
 * @param logits shape [n_vocab]
 */
export function fillCandidates(
  candidates: Candidates,
  logits: Float32Array,
  temperature: number,
  top_k: number,
): void {
  const { tokens, weights } = candidates;
  const scale = 1 / temperature;
  let count = 0;
  if (top_k > 0 && top_k < logits.length) {
    const top = selectTop(logits, top_k);
    const largest = top.length > 0 ? logits[top[0]!]! : 0;
    top.sort();
    for (const token of top) {
      const weight = fastExp((logits[token]! - largest) * scale);
      if (weight > 0) {
        tokens[count] = token;
        weights[count++] = weight;
      }
    }
  } else {
    const largest = largestOf(logits);
    for (let token = 0; token < logits.length; token++) {
      const weight = fastExp((logits[token]! - largest) * scale);
      if (weight > 0) {
        tokens[count] = token;
        weights[count++] = weight;
      }
    }
  }
  candidates.count = count;
}

/** Keeps the candidates for which `keep` is true, in place and in order. */
export function retain(candidates: Candidates, keep: (index: number) => boolean): void {
  const { tokens, weights } = candidates;
  let kept = 0;
  for (let index = 0; index < candidates.count; index++) {
    if (!keep(index)) continue;
    tokens[kept] = tokens[index]!;
    weights[kept++] = weights[index]!;
  }
  candidates.count = kept;
}

export function totalWeight(candidates: Candidates): number {
  let total = 0;
  for (let index = 0; index < candidates.count; index++) total += candidates.weights[index]!;
  return total;
}

/**
 * @param u in [0, 1)
 * @returns the index of the candidate whose stretch of the cumulative distribution holds u; −1 where no weight is left
 */
export function drawCandidate(candidates: Candidates, u: number): number {
  let rest = u * totalWeight(candidates);
  let last = -1;
  for (let index = 0; index < candidates.count; index++) {
    const weight = candidates.weights[index]!;
    if (weight === 0) continue;
    last = index;
    rest -= weight;
    if (rest < 0) return index;
  }
  return last;
}

function largestOf(logits: Float32Array): number {
  let largest = Number.NEGATIVE_INFINITY;
  for (let token = 0; token < logits.length; token++) {
    const logit = logits[token]!;
    if (logit > largest) largest = logit;
  }
  return largest === Number.NEGATIVE_INFINITY ? 0 : largest;
}
