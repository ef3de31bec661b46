/** What makes two batches the same to a kept graph, and what a graph offers to be filled and read. */
import type { Pointer } from '../../native/signature.ts';
import type { AttentionRoom } from './batch-attention.ts';
import type { GraphMemory } from './graph-memory.ts';

/** The rows of one sequence in a batch: consecutive tokens. */
export interface SegmentShape {
  rows: number;
  /** 0: keys and values lie in one extent; else they are gathered, with room for so many. */
  gather_capacity: number;
  /** 0: every row sees all keys (one row); else a causal mask with room for so many keys. */
  mask_capacity: number;
}

export interface GraphShape {
  /** None where our attention serves: to it, sequences are no part of a batch's shape. */
  segments: readonly SegmentShape[];
  /** Our attention serves, with room for so much; absent: ggml's. */
  paged?: AttentionRoom;
  /** Rows of the batch, padding included. */
  rows: number;
  /** Rows that leave the last operator of a whole model, padding included; 0: none (KV only). */
  output_rows: number;
  /** The first so many output rows get logits. */
  logit_rows: number;
  /** Each segment outputs at most its last row: the last layer computes only these. */
  last_rows_only: boolean;
  /** Output rows are picked after the last layer: they are not simply all rows in order. */
  selects: boolean;
  /** Segments that output their last row, in order, where `last_rows_only`. */
  output_segments: readonly number[];
}

export function shapeKey(shape: GraphShape): string {
  const segments = shape.segments.map((s) => `${s.rows},${s.gather_capacity},${s.mask_capacity}`).join(';');
  const flags = [shape.last_rows_only, shape.selects].map(Number).join('');
  const paged = shape.paged ? `${shape.paged.words},${shape.paged.partials}` : '';
  const outputs = `${shape.output_rows}/${shape.logit_rows}/${shape.output_segments.join(',')}`;
  return `${shape.rows}|${segments}${paged}|${outputs}|${flags}`;
}

/** Views of one segment's keys and values in one layer, to be moved before each run. */
export interface KvViewSlots {
  layer: number;
  segment: number;
  /** Slots whose address is the sequence's first KV row: empty where gathered. */
  keys: number;
  values: number;
}

export interface SegmentInputs {
  /** I32 [gather_capacity]: KV rows to gather. */
  gather_rows?: Pointer;
  /** F16 [mask_capacity, rows]. */
  mask?: Pointer;
}

export interface BuiltGraph {
  memory: GraphMemory;
  graph: Pointer;
  shape: GraphShape;
  /** What leaves each operator that is computed, in their order. */
  operator_ends: Pointer[];
  inputs: {
    tokens?: Pointer;
    hidden?: Pointer;
    positions?: Pointer;
    kv_rows?: Pointer;
    output_ids?: Pointer;
    output_positions?: Pointer;
    /** I32 [words] of our attention: over all rows, and over the output rows. */
    plan?: Pointer;
    output_plan?: Pointer;
    /** Of a stage that begins with experts. */
    mixture?: MixtureTensors;
    segments: SegmentInputs[];
  };
  kvViews: KvViewSlots[];
  /** Slots whose ne[1] is the number of keys of a segment. */
  keyExtents: number[][];
  /** Slots whose ne[0] is the number of keys of a segment (masks, gather indices). */
  keyWidths: number[][];
  /** Masks of a segment, whose strides follow ne[0]. */
  maskSlots: number[][];
  /** Where attention results of several segments meet; zeroed once. */
  attention?: Pointer;
  logits?: Pointer;
  hidden?: Pointer;
  /** Of a stage that ends behind a router; `guess`: what another layer's router says of the same rows. */
  routing?: MixtureTensors & { guess?: Pointer };
}

/** What goes from a router to the experts, for so many rows. */
export interface MixtureTensors {
  /** F32 [n_embd, rows]: what the experts multiply. */
  normed: Pointer;
  /** F32 [used, rows]: what a row takes of each. */
  shares: Pointer;
  /** I32 [used, rows]: experts. */
  chosen: Pointer;
}
