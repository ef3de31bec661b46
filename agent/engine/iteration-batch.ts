/** What one iteration of an engine computes: the rows of its sequences, as segments of one batch. */
import type { IterationPlan } from '../../spec/engine-contract.ts';
import type { BatchBounds } from './batch-bounds.ts';
import type { SegmentRequest } from './segment-output.ts';
import type { Sequence } from './sequence.ts';

/**
 * Prompt rows per iteration of a sequence whose every row needs logits: n_vocab floats each. Higher: faster, more
 * memory.
 */
const logprob_rows_max = 32;

export interface PlannedSequence extends SegmentRequest {
  sequence: Sequence;
}

/**
 * Decoding sequences, then prompt chunks up to the plan's tokens; all of them have the blocks for it. Those whose next
 * token is on its way have nothing to compute.
 * @param prompt_rows_max of all prompts together
 * @param depth batches that may be on their way at once: sequences that decode are divided among them
 */
export function planBatch(
  running: readonly Sequence[],
  plan: IterationPlan,
  { embedded_rows_max }: Pick<BatchBounds, 'embedded_rows_max'>,
  prompt_rows_max: number,
  depth: number,
): PlannedSequence[] {
  const generating = running.filter(({ n_generated }) => n_generated > 0).length;
  const decodes_max = plan.whole ? generating : Math.ceil(generating / depth);
  const planned: PlannedSequence[] = [];
  for (const sequence of plan.decode ? running : [])
    if (sequence.decodes && planned.length < decodes_max) planned.push(planSequence(sequence, 1));
  let left_tokens = Math.min(plan.prefill_tokens, prompt_rows_max);
  let left_embedded = embedded_rows_max;
  const first = running.find(({ id }) => id === plan.first);
  const others = running.filter((sequence) => sequence !== first);
  for (const sequence of first ? [first, ...others] : others) {
    if (left_tokens === 0) break;
    if (sequence.decodes || sequence.pending === 0) continue;
    const listed_max = sequence.request.prompt_logprobs !== undefined ? logprob_rows_max : left_tokens;
    const rows_max = sequence.isEmbedding ? left_embedded : listed_max;
    const rows = Math.min(sequence.pending, left_tokens, rows_max);
    if (rows === 0) continue;
    left_tokens -= rows;
    if (sequence.isEmbedding) left_embedded -= rows;
    planned.push(planSequence(sequence, rows));
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

function planSequence(sequence: Sequence, rows: number): PlannedSequence {
  const { request, tokens, n_computed: past_tokens, isEmbedding: embeds } = sequence;
  const complete = rows === sequence.pending;
  const all = sequence.needsAllRows;
  // A prefill that ends without a token to sample (max_new_tokens 0) needs no logits.
  const samples = complete && !embeds && tokens.length < sequence.tokens_max;
  const output = all ? 'all' : samples ? 'last' : 'none';
  const blocks = sequence.kv!.blocks;
  const planned: PlannedSequence = {
    sequence,
    segment: { past_tokens, rows, blocks, output, logits: !embeds },
    embeds,
    samples,
  };
  const sampling = samples ? request.sampler?.stateless : undefined;
  if (sampling) planned.sampling = sampling;
  if (all && !embeds) {
    const targets = tokens.slice(past_tokens + 1, Math.min(past_tokens + rows + 1, sequence.n_prompt));
    planned.prompt = { alternatives: request.prompt_logprobs!, targets };
  }
  return planned;
}
