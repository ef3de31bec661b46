/** Log probabilities of given tokens under the softmax of a row of logits. */
import type { SampledToken } from '../../spec/engine-contract.ts';

/**
 * @param logits shape [n_vocab]; not changed.
 * @param alternatives how many of the most probable tokens to name, best first.
 */
export function logprobsOf(logits: Float32Array, token: number, alternatives: number): SampledToken {
  let most = Number.NEGATIVE_INFINITY;
  for (const logit of logits) if (logit > most) most = logit;
  let sum = 0;
  for (const logit of logits) sum += Math.exp(logit - most);
  const normalizer = most + Math.log(sum);
  const top = mostProbable(logits, alternatives).map((candidate) => ({
    token: candidate,
    logprob: logits[candidate]! - normalizer,
  }));
  return { token, logprob: logits[token]! - normalizer, top };
}

/** Ids of the largest logits, best first; of equal ones the smaller id first. */
function mostProbable(logits: Float32Array, count: number): number[] {
  const best: number[] = [];
  if (count === 0) return best;
  logits.forEach((logit, token) => {
    if (best.length === count && logit <= logits[best.at(-1)!]!) return;
    let place = best.length;
    while (place > 0 && logits[best[place - 1]!]! < logit) place--;
    best.splice(place, 0, token);
    if (best.length > count) best.pop();
  });
  return best;
}
