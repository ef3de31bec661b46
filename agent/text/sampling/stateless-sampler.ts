import type { SampledToken, StatelessSampling } from '../../../spec/engine-contract.ts';
import type { Candidates } from './candidates.ts';
import { TokenSampler } from './token-sampler.ts';

/**
 * Chooses a token where nothing but its logits decides: the same one that the sequence's own sampler would.
 * @param logits shape [n_vocab]; may be overwritten
 * @param position of the token in its sequence
 * @param scratch see `TokenSampler`
 * @throws Error every logit is masked or NaN
 */
export function sampleStateless(
  sampling: StatelessSampling,
  logits: Float32Array,
  position: number,
  scratch: Candidates,
): SampledToken {
  const neutral = {
    presence_penalty: 0,
    frequency_penalty: 0,
    repetition_penalty: 1,
    logit_bias: [],
    min_tokens: 0,
  };
  const start = { prompt: [], continued: [], stop_tokens: [] };
  return new TokenSampler({ ...neutral, ...sampling }, start, scratch).sample(logits, position);
}
