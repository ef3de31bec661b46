/** What an engine asks of the sequences that it has and of those that come. */
import type { SequenceProgress, SequenceRequest } from '../../spec/engine-contract.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { kv_block_tokens } from './kv-storage.ts';
import { Sequence } from './sequence.ts';

interface SequenceBounds {
  context_tokens: number;
  kv_tokens_max: number;
  n_vocab: number;
}

/** @throws HpcserveError E_ENGINE_SEQUENCE: it cannot be computed here */
export function acceptSequence(
  request: SequenceRequest,
  { context_tokens, kv_tokens_max, n_vocab }: SequenceBounds,
  isAlive: boolean,
): Sequence {
  const { id, prompt_tokens, max_new_tokens } = request;
  const limit = Math.min(context_tokens, kv_tokens_max);
  const refuse = (what: string, because: string[] = []): never => {
    throw new HpcserveError('E_ENGINE_SEQUENCE', { what, because });
  };
  if (isAlive) refuse(`a sequence with the id ${id} is alive`);
  if (prompt_tokens.length === 0) refuse(`sequence ${id} has no tokens`);
  const needs = prompt_tokens.length + (request.sampler && max_new_tokens > 0 ? 1 : 0);
  if (needs > limit)
    refuse(`sequence ${id} needs ${needs} tokens and at most ${limit} fit`, [
      `context_tokens is ${context_tokens}, and the KV cache holds ${kv_tokens_max}`,
    ]);
  const outside = prompt_tokens.find((token) => token < 0 || token >= n_vocab);
  if (outside !== undefined)
    refuse(`sequence ${id} has the token ${outside}`, [`the vocabulary has ${n_vocab} tokens`]);
  return new Sequence(request, limit);
}

export function progressOf(sequence: Sequence): SequenceProgress {
  return {
    id: sequence.id,
    waiting: sequence.kv === undefined,
    tokens: sequence.tokens.length,
    generated_tokens: sequence.n_generated,
    pending_tokens: sequence.pending,
  };
}

export function tooBig({ tokens }: Sequence): string {
  return `the memory pool has no room for the KV of ${tokens.length} tokens: models in use hold the rest of it`;
}

/** The one that was begun first, and the one that was begun last. */
export function byAge(running: readonly Sequence[]): [oldest: Sequence, youngest: Sequence] {
  let oldest = running[0]!;
  let youngest = oldest;
  for (const sequence of running) {
    if (sequence.admitted < oldest.admitted) oldest = sequence;
    if (sequence.admitted > youngest.admitted) youngest = sequence;
  }
  return [oldest, youngest];
}

export function elapsed_us(started_ms: number): number {
  return Math.round((performance.now() - started_ms) * 1000);
}

export function blocksFor(tokens: number): number {
  return Math.ceil(tokens / kv_block_tokens);
}
