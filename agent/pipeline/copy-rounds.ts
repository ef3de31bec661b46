import type { BlockRows } from '../../solver/refactoring/copy-mask.ts';
import type { KvTransfer } from '../../solver/refactoring/layout.ts';
import type { KvMemory } from '../engine/kv-memory.ts';
import { kv_block_tokens } from '../engine/kv-storage.ts';
import { layersOf } from './kv-rows.ts';
import { countRows, type KvPiece } from './layout-messages.ts';
import type { RefactoringBounds } from './refactoring-bounds.ts';

interface RoundOrder extends KvTransfer {
  transfer: number;
  round: number;
  rows: readonly BlockRows[];
}

type PieceName = Pick<KvPiece, 'transfer' | 'round' | 'piece'>;

interface Round {
  round: number;
  waiting: KvPiece[];
  /** Pieces that are asked for and not copied yet. */
  pending: Map<number, KvPiece>;
  /** Those that are to be asked for once more, in other pieces, when somebody looks. */
  again: KvPiece[];
  /** Pieces of the round so far. */
  pieces: number;
  row_bytes: number;
  heard_ms: number;
  /** It may be silent for so long. */
  silence_ms: number;
}

/**
 * Rounds of copies as pieces: so much of a transfer is on its way at once, so that no connection has more to hold than
 * that, and batches come through between two pieces.
 */
export class CopyRounds {
  bytes_moved = 0;
  rounds = 0;
  readonly #kv: KvMemory;
  readonly #n_layer: number;
  readonly #bounds: RefactoringBounds;
  readonly #order: (piece: KvPiece) => void;
  readonly #transfers = new Map<number, Round>();

  /** @param kv of any stage of the pipeline: rows of a layer are of one size everywhere */
  constructor(kv: KvMemory, n_layer: number, bounds: RefactoringBounds, order: (piece: KvPiece) => void) {
    this.#kv = kv;
    this.#n_layer = n_layer;
    this.#bounds = bounds;
    this.#order = order;
  }

  /** The first transfer that something is waited for of. */
  get pending(): number | undefined {
    return this.#transfers.keys().next().value;
  }

  /** Pieces of a transfer are on their way beside the rings, or are to be. */
  isBeside(transfer: number): boolean {
    const { pending, waiting = [] } = this.#transfers.get(transfer) ?? {};
    return [...(pending?.values() ?? []), ...waiting].some(({ to_session }) => to_session !== undefined);
  }

  /**
   * @param session of the worker that rows may go to beside the rings; absent: by the rings. What was written during a
   * round is little: where one frame holds it, the ring is sooner there, and fewer rows are written meanwhile.
   */
  begin({ transfer, round, rows, from, to, begin, end }: RoundOrder, session?: string): void {
    this.rounds = Math.max(this.rounds, round);
    const layers = layersOf({ begin, end }, this.#n_layer);
    const { copy_silence_ms_max, beside_silence_ms_max, piece_bytes_max } = this.#bounds;
    const row_bytes = 2 * (layers.end - layers.begin) * this.#kv.row_bytes;
    const bytes = rows.reduce((sum, each) => sum + (each.end - each.begin) * row_bytes, 0);
    const to_session = round === 1 || bytes > piece_bytes_max ? session : undefined;
    const state: Round = {
      round,
      waiting: [],
      pending: new Map(),
      again: [],
      pieces: 0,
      row_bytes,
      heard_ms: performance.now(),
      silence_ms: to_session === undefined ? copy_silence_ms_max : beside_silence_ms_max,
    };
    const sorted = [...rows].sort((a, b) => a.block - b.block);
    const told = sorted.map((each): [number, number, number] => [each.block, each.begin, each.end]);
    const whole: KvPiece = { transfer, round, piece: 0, from, to, begin, end, rows: told };
    if (to_session !== undefined) whole.to_session = to_session;
    this.#divide(state, whole);
    this.#transfers.set(transfer, state);
    this.#send(state);
  }

  /** Bytes of a piece that is waited for; undefined: it is not. */
  pendingBytes({ transfer, round, piece }: PieceName): number | undefined {
    const state = this.#transfers.get(transfer);
    const pending = state?.round === round ? state.pending.get(piece) : undefined;
    return state && pending && countRows(pending) * state.row_bytes;
  }

  /** @returns whether its round is whole now */
  copied(of: PieceName): boolean {
    const bytes = this.pendingBytes(of);
    if (bytes === undefined) return false;
    const state = this.#transfers.get(of.transfer)!;
    state.pending.delete(of.piece);
    state.heard_ms = performance.now();
    this.bytes_moved += bytes;
    this.#send(state);
    if (state.pending.size > 0 || state.again.length > 0) return false;
    this.#transfers.delete(of.transfer);
    return true;
  }

  /** A piece did not come: it is asked for once more by the rings, and what waits behind it, too. */
  again({ transfer, round, piece }: PieceName): void {
    const state = this.#transfers.get(transfer);
    const pending = state?.round === round ? state.pending.get(piece) : undefined;
    if (!state || !pending) return;
    state.pending.delete(piece);
    state.again.push(pending, ...state.waiting.splice(0));
  }

  /** Asks once more for what did not come. */
  sendAgain(): void {
    for (const state of this.#transfers.values()) {
      for (const { to_session: _, ...piece } of state.again.splice(0)) this.#divide(state, piece);
      this.#send(state);
    }
  }

  /** A transfer of which nothing came for too long. */
  silent(now_ms: number): { transfer: number; silence_ms: number } | undefined {
    for (const [transfer, { heard_ms, silence_ms }] of this.#transfers)
      if (now_ms - heard_ms > silence_ms) return { transfer, silence_ms };
    return undefined;
  }

  /** Rows as pieces of the size that their way has. */
  #divide(state: Round, whole: KvPiece): void {
    const { piece_bytes_max, beside_piece_bytes_max } = this.#bounds;
    const bytes_max = whole.to_session === undefined ? piece_bytes_max : beside_piece_bytes_max;
    const blocks = Math.max(1, Math.floor(bytes_max / (kv_block_tokens * state.row_bytes)));
    for (let at = 0; at < whole.rows.length; at += blocks)
      state.waiting.push({ ...whole, piece: state.pieces++, rows: whole.rows.slice(at, at + blocks) });
  }

  #send(state: Round): void {
    while (state.pending.size < this.#bounds.pieces_max) {
      const piece = state.waiting.shift();
      if (!piece) return;
      state.pending.set(piece.piece, piece);
      this.#order(piece);
    }
  }
}
