import type { PlannedSequence } from './iteration-batch.ts';
import { kv_block_tokens } from './kv-storage.ts';
import type { Sequence } from './sequence.ts';

/** Sequences of an engine whose pipeline changes its layout, to who changes it. */
export interface ChangingSequences {
  /** How many have keys and values. */
  readonly with_kv: number;
  /** Some of them are at their answers. */
  readonly decodes: boolean;
  /** Prompts wait as long as others are at their answers. */
  prompts_wait: boolean;
  /** Rows of each block that are written or will be by what was submitted, also of prompts that are only remembered. */
  filledBlocks(): Map<number, number>;
  /**
   * Everything on its way comes back, and nothing is left at stages but rows in blocks: what was swapped out is
   * computed again when it comes back.
   * @returns whether the pipeline is in order
   */
  settle(): boolean;
  /** Of each block so many rows are left. Sequences go on where theirs end. */
  keepRows(rowsOf: (block: number) => number): void;
}

/** Adds the rows of a sequence, whose first blocks others may have too. */
export function widenRows(filled: Map<number, number>, blocks: readonly number[], tokens: number): void {
  for (const [index, block] of blocks.entries()) {
    const rows = Math.min(kv_block_tokens, tokens - index * kv_block_tokens);
    if (rows > (filled.get(block) ?? 0)) filled.set(block, rows);
  }
}

/**
 * Sequences go on where their rows end.
 * @param again begins one anew, of whose rows something was made on the way that is not to be made twice
 */
export function truncate(
  running: readonly Sequence[],
  rowsOf: (block: number) => number,
  again: (sequence: Sequence) => void,
): void {
  for (const sequence of [...running]) {
    const rows = keptRows(sequence.kv!.blocks, rowsOf);
    if (rows >= sequence.n_computed) continue;
    if (sequence.needsAllRows) again(sequence);
    else sequence.n_computed = rows;
  }
}

/** Sequences are where they were before these parts of batches set out. @param again as for `truncate` */
export function unsubmit(planned: readonly PlannedSequence[], again: (sequence: Sequence) => void): void {
  for (const { sequence, segment } of planned) {
    if (!sequence.kv) continue;
    if (sequence.needsAllRows) again(sequence);
    else sequence.n_computed = Math.min(sequence.n_computed, segment.past_tokens);
  }
}

/** Tokens of a sequence from its first on whose rows are left. */
function keptRows(blocks: readonly number[], rowsOf: (block: number) => number): number {
  let tokens = 0;
  for (const block of blocks) {
    const rows = rowsOf(block);
    tokens += rows;
    if (rows < kv_block_tokens) break;
  }
  return tokens;
}
