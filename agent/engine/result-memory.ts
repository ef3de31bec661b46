/** Memory of a batch's results that is not there: what that means for its sequences. */
import type { SequenceOutput } from '../../spec/engine-contract.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { BatchExecutor } from './batch-executor.ts';
import type { Sequence } from './sequence.ts';

/** Of a model that one device computes: a batch that finds no memory has changed nothing yet. */
export function isShortOfResults(error: unknown, { reserve }: BatchExecutor): boolean {
  return reserve !== undefined && error instanceof HpcserveError && error.code === 'E_NATIVE_MEMORY';
}

/** Whose keys and values, and rows of its prompt, take most. */
export function longestOf(running: readonly Sequence[]): Sequence | undefined {
  let longest = running[0];
  for (const sequence of running) if (sequence.tokens.length > longest!.tokens.length) longest = sequence;
  return longest;
}

/** It ends, and could be computed elsewhere, or once others have given memory up. */
export function withoutResults({ id, tokens }: Sequence): SequenceOutput {
  const error = `the device has no memory for what is computed of ${tokens.length} tokens, beside their KV`;
  return { id, error, short_of_memory: true };
}
