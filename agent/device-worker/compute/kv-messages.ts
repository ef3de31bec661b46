/** What the main thread asks of sequences that move with their keys and values, and what it is told. */
import type { MemoryPiece, TransferMemory } from '../../../native/fabric/memory.ts';
import type { Pointer } from '../../../native/signature.ts';
import type { KvRange } from '../../engine/kv-runs.ts';
import type { KvPiece } from '../../pipeline/layout-messages.ts';

/**
 * Consecutive tokens that travel together, and where their rows lie: in the pool, or in the staging memory where others
 * cannot address the pool.
 */
export interface PlacedRun {
  tokens: KvRange;
  pieces: MemoryPiece[];
}

/** A part of the staging memory of the host, which both threads see: see `HostStaging`. */
export interface HostRoom {
  /** In the staging memory. */
  readonly offset: number;
  readonly bytes: number;
  readonly address: Pointer;
}

/** Keys and values of a sequence that nobody writes to before they are let go. */
export interface HeldRows {
  /** Prompt and answer so far. */
  tokens: Int32Array;
  /** Of these, so many have keys and values. */
  computed: number;
  /** From the token on that was asked for; none where that is all there is. */
  runs: PlacedRun[];
  /** The token behind the last run: before `computed`, where a room of the host holds no more at once. */
  placed: number;
}

/** How far a live sequence is. */
export interface SequenceState {
  id: number;
  /** It has no keys and values yet. */
  waiting: boolean;
  tokens: number;
  computed_tokens: number;
}

/** What rows of a model are, and where they lie: told with a model that serves. */
export interface KvShapeOfModel {
  /** Keys, or values, of one token in one layer. */
  row_bytes: number;
  n_layer: number;
  n_head_kv: number;
  head_dim: number;
  /** Absent: others cannot address it, and rows go through staging memory of the host. */
  memory?: TransferMemory | undefined;
}

/** What rows of a stage are: see `KvShapeOfModel`. */
export interface KvShapeOfStage extends Omit<KvShapeOfModel, 'n_layer'> {
  /** Of the model: see `model-identity.ts`. */
  identity: string;
}

/** Of rows that come to stages while layouts change. */
export type RowsAsk =
  /** Copies rows that are to leave to memory of the host: how many bytes they are. */
  | { do: 'read_rows'; id: number; into: HostRoom }
  /** Where they belong: `MemoryPiece[]`, none where others cannot address that. */
  | { do: 'reserve_rows'; model: string; arrival: string; refactoring: number; piece: KvPiece }
  /** They are there, or in memory of the host. */
  | { do: 'commit_rows'; arrival: string; way: string; from?: HostRoom | undefined }
  /** They do not come, and nothing writes there any more. */
  | { do: 'abort_rows'; arrival: string };

export type KvAsk = RowsAsk | SequencesAsk;

export type SequencesAsk =
  /** What is alive of a model: `SequenceState[]`. */
  | { do: 'list'; model: string }
  /**
   * The rows of a running sequence as they are now, from a token on, while it goes on: `HeldRows`, or nothing where it
   * does not run. Absent `from`: all of them. `into`: where others cannot address them, as many as that holds are
   * copied there.
   */
  | { do: 'hold'; model: string; id: number; from?: number; into?: HostRoom | undefined }
  /** The same once more is not needed. */
  | { do: 'let_go'; id: number }
  /**
   * It stops, with its rows where they are: `HeldRows` from a token on, or nothing where it does not run. Once more:
   * the rows behind. `into` as for `hold`.
   */
  | { do: 'detach'; model: string; id: number; from: number; into?: HostRoom | undefined }
  /** It goes on where it was, or has moved. */
  | { do: 'settle'; id: number; moved: boolean }
  /** Room for rows of a sequence that comes: `PlacedRun[]`, one a run; nothing where others cannot address that. */
  | {
      do: 'reserve';
      model: string;
      arrival: string;
      scope: string | undefined;
      tokens: Int32Array;
      runs: KvRange[];
      /** A number of its own. */
      reservation: number;
    }
  /** The rows of a reservation are there, or in memory of the host, or do not come. */
  | { do: 'commit'; arrival: string; reservation: number; from?: HostRoom | undefined }
  | { do: 'abort'; arrival: string; reservation: number }
  /** Whoever needs what has arrived has it, or does not come: it is kept as other prompts are. */
  | { do: 'forget'; arrival: string };

export type KvTold = HeldRows | SequenceState[] | PlacedRun[] | MemoryPiece[] | number | undefined;
