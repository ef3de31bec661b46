/** What is read off the output rows of a sequence's part of a batch, where the logits are. */
import type { SampledToken, StatelessSampling } from '../../spec/engine-contract.ts';
import type { Candidates } from '../text/sampling/candidates.ts';
import { sampleStateless } from '../text/sampling/stateless-sampler.ts';
import { logprobsOf } from './logprobs.ts';
import type { BatchSegment, StageResult } from './stage-batch.ts';

/** What a sequence wants of its part of a batch. */
export interface SegmentRequest {
  segment: BatchSegment;
  /** Its hidden rows, which are pooled. */
  embeds: boolean;
  /** A token is chosen behind its last row. */
  samples: boolean;
  /** Present: the choice may be made where the logits are. */
  sampling?: StatelessSampling;
  /** Log probabilities of the tokens behind its rows: known ones, as many as there are. */
  prompt?: { alternatives: number; targets: Int32Array };
}

/** Views are valid until the next batch. */
export interface SegmentOutput {
  /** The token behind its last row, where it was chosen there. */
  chosen?: SampledToken;
  /** Why none was chosen. */
  error?: string;
  /** Shape [n_vocab]: of its last row, where the choice is the sequence's own sampler's. */
  logits?: Float32Array;
  /** Shape [rows, n_embd]. */
  hidden?: Float32Array;
  prompt_logprobs?: SampledToken[];
}

/**
 * @param first_row of the segment among the output rows; −1 where it has none
 * @param scratch present: choices that need nothing but logits are made here
 */
export function readSegment(
  { segment, embeds, samples, sampling, prompt }: SegmentRequest,
  first_row: number,
  { logits, hidden }: StageResult,
  { n_vocab, n_embd }: { n_vocab: number; n_embd: number },
  scratch?: Candidates,
): SegmentOutput {
  const output: SegmentOutput = {};
  if (first_row < 0) return output;
  const row = (index: number): Float32Array => logits.subarray(index * n_vocab, (index + 1) * n_vocab);
  if (embeds) {
    output.hidden = hidden.subarray(first_row * n_embd, (first_row + segment.rows) * n_embd);
    return output;
  }
  if (prompt)
    output.prompt_logprobs = Array.from(prompt.targets, (token, offset) =>
      logprobsOf(row(first_row + offset), token, prompt.alternatives),
    );
  if (!samples) return output;
  const last = row(segment.output === 'all' ? first_row + segment.rows - 1 : first_row);
  if (!sampling || !scratch) output.logits = last;
  else
    try {
      output.chosen = sampleStateless(sampling, last, segment.past_tokens + segment.rows, scratch);
    } catch (error) {
      // A choice belongs to one request: what it throws ends that request and no other.
      output.error = error instanceof Error ? error.message : String(error);
    }
  return output;
}
