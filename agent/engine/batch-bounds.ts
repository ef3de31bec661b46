/** What a batch may have at most, where it goes to other devices and what comes of it comes back. */
import type { EngineOptions } from '../../spec/engine-contract.ts';

export interface BatchBounds extends Pick<EngineOptions, 'max_sequences' | 'prefill_chunk_tokens'> {
  /** Of prompts that are embedded: all of their hidden rows come back. */
  embedded_rows_max: number;
}

/**
 * A batch goes on as a hidden row of each of its rows. A row of logits comes back for each sequence at most, and beside
 * them hidden rows.
 * @param floats_max numbers that travel at once; absent: as many as there are
 */
export function batchBounds(
  asked: Pick<EngineOptions, 'max_sequences' | 'prefill_chunk_tokens'>,
  { n_embd, n_vocab }: { n_embd: number; n_vocab: number },
  floats_max = Number.POSITIVE_INFINITY,
): BatchBounds {
  const rows_max = Math.floor(floats_max / n_embd);
  const sequences_max = Math.min(Math.floor((floats_max - n_embd) / n_vocab), rows_max - 1);
  const max_sequences = Math.max(1, Math.min(asked.max_sequences, sequences_max));
  return {
    max_sequences,
    prefill_chunk_tokens: Math.min(asked.prefill_chunk_tokens, rows_max - max_sequences),
    embedded_rows_max: Math.floor((floats_max - max_sequences * n_vocab) / n_embd),
  };
}
