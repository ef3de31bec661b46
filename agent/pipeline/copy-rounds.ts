import type { BlockRows } from '../../solver/refactoring/copy-mask.ts';
import type { KvTransfer } from '../../solver/refactoring/layout.ts';
import type { KvMemory } from '../engine/kv-memory.ts';
import { kv_block_tokens } from '../engine/kv-storage.ts';
import { layersOf } from './kv-rows.ts';
import type { KvPiece } from './layout-messages.ts';
import type { RefactoringBounds } from './refactoring-bounds.ts';

interface RoundOrder extends KvTransfer {
  transfer: number;
  round: number;
  rows: readonly BlockRows[];
}

interface Round {
  round: number;
  waiting: KvPiece[];
  /** Pieces that are asked for and not copied yet, and their bytes. */
  pending: Map<number, number>;
  row_bytes: number;
  heard_ms: number;
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

  begin({ transfer, round, rows, from, to, begin, end }: RoundOrder): void {
    this.rounds = Math.max(this.rounds, round);
    const layers = layersOf({ begin, end }, this.#n_layer);
    const row_bytes = 2 * (layers.end - layers.begin) * this.#kv.row_bytes;
    const blocks = Math.max(1, Math.floor(this.#bounds.piece_bytes_max / (kv_block_tokens * row_bytes)));
    const sorted = [...rows].sort((a, b) => a.block - b.block);
    const waiting: KvPiece[] = [];
    for (let at = 0; at < sorted.length; at += blocks) {
      const part = sorted.slice(at, at + blocks);
      const told = part.map((each): [number, number, number] => [each.block, each.begin, each.end]);
      waiting.push({ transfer, round, piece: waiting.length, from, to, begin, end, rows: told });
    }
    const state: Round = { round, waiting, pending: new Map(), row_bytes, heard_ms: performance.now() };
    this.#transfers.set(transfer, state);
    this.#send(state);
  }

  /** @returns whether its round is whole now */
  copied({ transfer, round, piece }: Pick<KvPiece, 'transfer' | 'round' | 'piece'>): boolean {
    const state = this.#transfers.get(transfer);
    const bytes = state?.round === round ? state.pending.get(piece) : undefined;
    if (!state || bytes === undefined) return false;
    state.pending.delete(piece);
    state.heard_ms = performance.now();
    this.bytes_moved += bytes;
    this.#send(state);
    if (state.pending.size > 0) return false;
    this.#transfers.delete(transfer);
    return true;
  }

  /** A transfer of which nothing came for too long. */
  silent(now_ms: number): number | undefined {
    for (const [transfer, { heard_ms }] of this.#transfers)
      if (now_ms - heard_ms > this.#bounds.copy_silence_ms_max) return transfer;
    return undefined;
  }

  #send(state: Round): void {
    while (state.pending.size < this.#bounds.pieces_max) {
      const piece = state.waiting.shift();
      if (!piece) return;
      const n_rows = piece.rows.reduce((sum, [, begin, end]) => sum + end - begin, 0);
      state.pending.set(piece.piece, n_rows * state.row_bytes);
      this.#order(piece);
    }
  }
}
