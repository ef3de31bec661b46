import type { SampledToken } from '../../../spec/engine-contract.ts';
import { fastExp } from './fast-exp.ts';
import { argmax } from './greedy.ts';
import { selectTop } from './select-top.ts';

/** Log probabilities under the softmax of logits that nothing has modified yet. */
export interface LogProbabilities {
  /** log Σ exp(logit): a token's log probability is its logit less this. */
  normaliser: number;
  top: { token: number; logprob: number }[];
}

/**
 * @param logits shape [n_vocab], raw
 * @param alternatives how many of the most probable tokens to list
 */
export function logProbabilities(logits: Float32Array, alternatives: number): LogProbabilities {
  const best = argmax(logits);
  const largest = best < 0 ? 0 : logits[best]!;
  let sum = 0;
  for (let token = 0; token < logits.length; token++) sum += fastExp(logits[token]! - largest);
  const normaliser = largest + Math.log(sum);
  const top = Array.from(selectTop(logits, alternatives), (token) => ({
    token,
    logprob: logits[token]! - normaliser,
  }));
  return { normaliser, top };
}

/** @param rawLogit the token's logit before anything modified it. */
export function describeToken(token: number, rawLogit: number, from: LogProbabilities): SampledToken {
  return { token, logprob: rawLogit - from.normaliser, top: from.top };
}
