import type { SequenceOutput } from '../../spec/engine-contract.ts';
import type { SegmentOutput } from './segment-output.ts';
import type { Sequence } from './sequence.ts';

/**
 * The next token of a sequence, by its own sampler; or why there is none. A sampler belongs to one request: what it
 * throws ends that request and no other.
 */
export function sampleToken(
  { request, tokens }: Sequence,
  { chosen, error, logits }: SegmentOutput,
): Pick<SequenceOutput, 'token' | 'error'> {
  const sampler = request.sampler!;
  try {
    if (error !== undefined) throw new Error(error);
    if (chosen) sampler.take?.(chosen.token);
    return { token: chosen ?? sampler.sample(logits!, tokens.length) };
  } catch (thrown) {
    return { error: thrown instanceof Error ? thrown.message : String(thrown) };
  }
}
