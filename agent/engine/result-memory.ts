/** Memory of a batch's results that is not there: what that means for its sequences. */
import type { SequenceOutput } from '../../spec/engine-contract.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { Sequence } from './sequence.ts';

/** A batch that finds no memory on this device has changed nothing that counts: what it wrote is written again. */
export function isShortOfResults(error: unknown): boolean {
  return error instanceof HpcserveError && error.code === 'E_NATIVE_MEMORY';
}

/** Whose keys and values, and rows of its prompt, take most. @param batch of one sequence at least */
export function longestOf(batch: readonly Sequence[]): Sequence {
  let longest = batch[0]!;
  for (const sequence of batch) if (sequence.tokens.length > longest.tokens.length) longest = sequence;
  return longest;
}

/** It ends, and could be computed elsewhere, or once others have given memory up. */
export function withoutResults({ id, tokens }: Sequence): SequenceOutput {
  const error = `the device has no memory for what is computed of ${tokens.length} tokens, beside their KV`;
  return { id, error, short_of_memory: true };
}
