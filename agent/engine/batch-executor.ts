import type { EngineStats, StageTime, SwapPlace } from '../../spec/engine-contract.ts';
import type { Architecture } from './architecture.ts';
import type { PlannedSequence } from './iteration-batch.ts';
import type { KvSlabStorage } from './kv-storage.ts';
import type { SegmentOutput } from './segment-output.ts';
import type { Stage } from './stage.ts';

/** What came of a batch. */
export interface BatchOutputs {
  /** By the order of its sequences; views are valid until the next batch is submitted. */
  segments: SegmentOutput[];
  /** Sequences whose keys and values had changed in host memory: what was computed from them means nothing. */
  damaged: readonly number[];
}

/** What is told of a stage, of all that is known. */
export function stageTimeOf(stage: StageTime): StageTime {
  const { begin, end, computed_us, operators_us, waiting, memory_bytes } = stage;
  const told: StageTime = { begin, end, computed_us, waiting, memory_bytes };
  if (operators_us && operators_us.length > 0) told.operators_us = operators_us.map(Math.round);
  return told;
}

/** What an engine asks of the stages on its device. */
export type StageSummary = Pick<
  Stage,
  | 'kv'
  | 'weight_bytes'
  | 'layouts'
  | 'batch_invariant'
  | 'compute_bytes'
  | 'working_bytes'
  | 'prompt_rows_max'
>;

/**
 * What computes the batches of an engine: one stage that is the whole model, or a pipeline of several stages on several
 * devices. Everything that it is told is done in order, by every stage: blocks may be given to another sequence while a
 * batch that writes to them is on its way.
 */
export interface BatchExecutor {
  readonly model: Architecture;
  /** The one on this device. */
  readonly stage: Stage;
  /** Where several stages on this device compute one behind the other, all of them together; absent: `stage`. */
  readonly whole?: StageSummary;
  /** Batches that may be on their way at once. */
  readonly depth: number;
  /** Whose blocks are handed out. */
  readonly storage: KvSlabStorage;
  /** What all stages have KV for, where that is known to be less than was asked for. */
  readonly kv_tokens_max: number;
  /** Of a batch, and of what comes of it, numbers that may travel at once; absent: nothing of it leaves this device. */
  readonly batch_floats_max?: number;
  /** See `EngineStats`; absent: what the stages on this device have. */
  readonly working_bytes?: number;
  /** See `EngineStats`. */
  readonly streamed?: EngineStats['streamed'];
  /** Of a pipeline: what its stages take. */
  readonly stages?: readonly StageTime[];

  /**
   * Takes memory for the results of batches with a sequence of so many tokens. Absent: nothing grows with that.
   * @param rows of a batch at most
   * @returns false where there is none
   */
  reserve?(tokens: number, rows: number): boolean;
  /** Copies the first rows of a block to another one. */
  copyRows(from_block: number, to_block: number, rows: number): void;
  /**
   * @throws HpcserveError E_ENGINE_COMPUTE, E_ENGINE_NUMBERS, E_STAGE_*; E_NATIVE_MEMORY: there is none for its
   * results, and it may be submitted again without one of its sequences
   */
  submit(batch: readonly PlannedSequence[]): void;
  /**
   * Waits for the oldest batch that was submitted.
   * @returns undefined: every batch on its way is lost, and is to be computed again
   * @throws HpcserveError as `submit`, but E_NATIVE_MEMORY
   */
  collect(): BatchOutputs | undefined;
  /** Keys and values may wait on a disk of this node now; absent: they never can. */
  readonly hasDisk?: boolean;
  /**
   * Copies keys and values of a sequence to host memory, or to the disk where there is one.
   * @returns bytes of this device; undefined where the disk does not take them: they are where they were
   */
  swapOut(id: number, blocks: readonly number[], tokens: number, place: SwapPlace): number | undefined;
  /**
   * Copies them back, into blocks that are long enough. Bytes that changed meanwhile are told at once, or with the next
   * batch.
   * @returns whether they are known to be damaged
   */
  swapIn(id: number, blocks: readonly number[]): boolean;
  /** What was swapped out is not needed any more. */
  forgetSwapped(id: number): void;
  /**
   * With nothing on its way: has all that computes do what it was told. Absent: nothing of it ever waits.
   * @returns see `BatchOutputs.damaged`
   */
  flush?(): readonly number[];
  /** Nothing is on its way: whether all that computes is there. Absent: it is. @throws HpcserveError E_STAGE_LOST */
  check?(): void;
  free(): void;
}
