/** Which rows of a batch leave its last operator, and in which order. */
import type { BatchSegment } from './stage-batch.ts';

export interface OutputOrder {
  rows: number;
  logit_rows: number;
  /** Batch rows in output order: those with logits first. */
  row_ids: Int32Array;
  positions: Int32Array;
  /** Segments in output order. */
  segments: number[];
  /** Per segment, its first output row; −1 where it has none. */
  first_row: Int32Array;
}

export function outputOrder(segments: readonly BatchSegment[]): OutputOrder {
  const ids: number[] = [];
  const positions: number[] = [];
  const ordered: number[] = [];
  const first_row = new Int32Array(segments.length).fill(-1);
  let logit_rows = 0;
  for (const wantsLogits of [true, false]) {
    let row = 0;
    segments.forEach((segment, index) => {
      if (segment.output !== 'none' && segment.logits === wantsLogits) {
        first_row[index] = ids.length;
        ordered.push(index);
        for (let offset = segment.output === 'all' ? 0 : segment.rows - 1; offset < segment.rows; offset++) {
          ids.push(row + offset);
          positions.push(segment.past_tokens + offset);
        }
      }
      row += segment.rows;
    });
    if (wantsLogits) logit_rows = ids.length;
  }
  return {
    rows: ids.length,
    logit_rows,
    row_ids: Int32Array.from(ids),
    positions: Int32Array.from(positions),
    segments: ordered,
    first_row,
  };
}

/** Each row as a segment of its own: the same rows leave the stage, in the same order. */
export function singleRows({ past_tokens, rows, blocks, output, logits }: BatchSegment): BatchSegment[] {
  return Array.from({ length: rows }, (_, row) => {
    const leaves = output === 'all' || (output === 'last' && row === rows - 1);
    return { past_tokens: past_tokens + row, rows: 1, blocks, output: leaves ? output : 'none', logits };
  });
}

/** Whether each segment outputs its last row at most, and some rows do not leave: these are not computed to the end. */
export function isNarrow(segments: readonly BatchSegment[], order: OutputOrder): boolean {
  const rows = segments.reduce((sum, segment) => sum + segment.rows, 0);
  return order.rows < rows && segments.every(({ output }) => output !== 'all');
}

/** The rows that leave, in their order, as a batch for what comes behind the last attention. */
export function outputSegments(segments: readonly BatchSegment[], order: OutputOrder): BatchSegment[] {
  return order.segments.map((segment, index) => {
    const { blocks, logits } = segments[segment]!;
    return { past_tokens: order.positions[index]!, rows: 1, blocks, output: 'last', logits };
  });
}
