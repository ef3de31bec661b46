/** What one iteration of an engine computes: the rows of its sequences, as segments of one batch. */
import type { IterationPlan } from '../../spec/engine-contract.ts';
import type { Sequence } from './sequence.ts';
import type { BatchSegment } from './stage.ts';

/**
 * Prompt rows per iteration of a sequence whose every row needs logits: n_vocab floats each. Higher: faster, more
 * memory.
 */
const logprob_rows_max = 32;

export interface PlannedSequence {
  sequence: Sequence;
  segment: BatchSegment;
}

/** Every decoding sequence, then prompt chunks up to the plan's tokens; all of them have the blocks for it. */
export function planBatch(
  running: readonly Sequence[],
  plan: IterationPlan,
  prefill_tokens_max: number,
): PlannedSequence[] {
  const planned: PlannedSequence[] = [];
  for (const sequence of plan.decode ? running : [])
    if (sequence.decodes) planned.push({ sequence, segment: segmentOf(sequence, 1) });
  let left_tokens = Math.min(plan.prefill_tokens, prefill_tokens_max);
  const first = running.find(({ id }) => id === plan.first);
  const others = running.filter((sequence) => sequence !== first);
  for (const sequence of first ? [first, ...others] : others) {
    if (left_tokens === 0) break;
    if (sequence.decodes) continue;
    const rows_max = sequence.request.prompt_logprobs !== undefined ? logprob_rows_max : left_tokens;
    const rows = Math.min(sequence.pending, left_tokens, rows_max);
    left_tokens -= rows;
    planned.push({ sequence, segment: segmentOf(sequence, rows) });
  }
  return planned;
}

/** Tokens of all rows, in their order. */
export function batchTokens(batch: readonly PlannedSequence[]): Int32Array {
  const rows = batch.reduce((sum, { segment }) => sum + segment.rows, 0);
  const tokens = new Int32Array(rows);
  let row = 0;
  for (const { sequence, segment } of batch) {
    tokens.set(sequence.tokens.slice(segment.past_tokens, segment.past_tokens + segment.rows), row);
    row += segment.rows;
  }
  return tokens;
}

function segmentOf(sequence: Sequence, rows: number): BatchSegment {
  const complete = rows === sequence.pending;
  const all = sequence.needsAllRows;
  // A prefill that ends without a token to sample (max_new_tokens 0) needs no logits.
  const samples = complete && sequence.tokens.length < sequence.tokens_max;
  return {
    past_tokens: sequence.n_computed,
    rows,
    blocks: sequence.kv!.blocks,
    output: all ? 'all' : samples ? 'last' : 'none',
    logits: !sequence.isEmbedding,
  };
}
