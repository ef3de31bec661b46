/** What a refactoring hears and what it asks for; `Refactoring` turns the one into the other. */
import type { BlockRows } from './copy-mask.ts';
import type { OperatorRange, PipelineLayout } from './layout.ts';

/**
 *     preparing ──► copying ──► pausing ──► cutting ──► starting ──► done
 *         │            │           │           │           │
 *         └────────────┴───────────┴───────────┴► done     └► returning ──► done
 *
 * - preparing: devices of the new layout reserve memory and load what they lack; the old one computes.
 * - copying: KV is copied in rounds; the old one computes.
 * - pausing: no batch is submitted any more, and the last results come in.
 * - cutting: the rows that were written since the last round are copied. Nothing computes.
 * - starting: the new layout begins its epoch; the old one is whole until all have begun.
 * - returning: the old layout begins a later epoch.
 */
export type RefactoringPhase =
  | 'preparing'
  | 'copying'
  | 'pausing'
  | 'cutting'
  | 'starting'
  | 'returning'
  | 'done';

export type RefactoringEvent =
  /** The device has its weights and room for its KV. */
  | { kind: 'prepared'; device: string }
  | { kind: 'refused'; device: string; because: string }
  | { kind: 'copied'; transfer: number; round: number }
  | { kind: 'copy_failed'; transfer: number; because: string }
  /** Every batch that was submitted has come back. */
  | { kind: 'drained' }
  /** Every stage of the layout is in that epoch. */
  | { kind: 'begun'; epoch: number }
  | { kind: 'lost'; device: string; because: string }
  | { kind: 'cancelled'; because: string }
  /** The phase has lasted as long as it may. */
  | { kind: 'deadline'; phase: RefactoringPhase };

export type RefactoringAction =
  | { do: 'prepare'; device: string; stage: OperatorRange; loads: readonly OperatorRange[] }
  /** The source reads the rows behind every batch that was submitted before, and the target says when it has them. */
  | { do: 'copy'; transfer: number; round: number; rows: readonly BlockRows[] }
  /** No chunks of prompts, whose rows are written faster than they are copied; decoding goes on. */
  | { do: 'hold_prefill' }
  /** No batch at all; `drained` is the answer. */
  | { do: 'pause' }
  /** All stages of the layout begin this epoch, in which batches are submitted once `begun` was heard. */
  | { do: 'begin'; layout: PipelineLayout; epoch: number }
  /** Batches are submitted as before, prompts too, in the epoch that is. */
  | { do: 'resume' }
  /** What the device has for no layout any more is given back. */
  | { do: 'release'; device: string; keeps: OperatorRange | undefined }
  | { do: 'end'; outcome: RefactoringOutcome };

export type RefactoringOutcome =
  | {
      kind: 'refactored';
      epoch: number;
      /** Transfers whose source was lost: the target has what their masks say, the rest is computed again. */
      incomplete: readonly number[];
    }
  /** The old layout computes; `epoch` is another than before where the new one had begun. */
  | { kind: 'kept'; epoch: number; because: string }
  /** Neither layout has all its devices. */
  | { kind: 'lost'; because: string };
