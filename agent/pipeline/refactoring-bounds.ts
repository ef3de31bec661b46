import type { RefactoringPhase } from '../../solver/refactoring/messages.ts';

/** How long a change of layout may take, and how much of it is on its way at once. */
export interface RefactoringBounds {
  /** Of each phase; what takes longer is given up, see `Refactoring`. Lower: gives up sooner; higher: waits longer. */
  phases_ms: Readonly<Record<RefactoringPhase, number>>;
  /** A transfer of which nothing came for so long has failed. */
  copy_silence_ms_max: number;
  /**
   * The same of one beside the rings, whose way may have to be found first: each that does not work takes some seconds,
   * in which the old layout computes on.
   */
  beside_silence_ms_max: number;
  /**
   * Bytes of KV in one frame. Lower: batches wait less behind it; higher: fewer frames.
   */
  piece_bytes_max: number;
  /** The same beside the rings. Lower: more to be said of each byte; higher: less moves while a link is waited for. */
  beside_piece_bytes_max: number;
  /** Frames of one transfer asked for and not yet copied. Higher: faster over slow links, more memory there. */
  pieces_max: number;
  /** Between two looks at the clock while something is waited for. */
  look_ms: number;
}

export const refactoringBounds: RefactoringBounds = {
  phases_ms: {
    preparing: 600_000,
    copying: 600_000,
    pausing: 10_000,
    // As long as a ring may be silent: hosts that are short of cores are no reason to give up.
    cutting: 10_000,
    starting: 10_000,
    returning: 10_000,
    done: Number.POSITIVE_INFINITY,
  },
  copy_silence_ms_max: 10_000,
  beside_silence_ms_max: 60_000,
  piece_bytes_max: 2 ** 20,
  beside_piece_bytes_max: 16 * 2 ** 20,
  pieces_max: 16,
  look_ms: 5,
};
