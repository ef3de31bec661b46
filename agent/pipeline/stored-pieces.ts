import type { KvPiece } from './layout-messages.ts';

type PieceName = Pick<KvPiece, 'transfer' | 'round' | 'piece'>;

/**
 * Pieces of one change that a device has written by its rings. A round begins once the one before it is whole, so what
 * is of an earlier one, or was there before, is older than what may lie in its rows by now.
 */
export class StoredPieces {
  /** By transfer: its last round, and the pieces of that. */
  readonly #rounds = new Map<number, { round: number; pieces: Set<number> }>();

  /** @returns whether it is to be written; not again */
  take({ transfer, round, piece }: PieceName): boolean {
    const last = this.#rounds.get(transfer);
    if (last === undefined || last.round < round) {
      this.#rounds.set(transfer, { round, pieces: new Set([piece]) });
      return true;
    }
    if (last.round > round || last.pieces.has(piece)) return false;
    last.pieces.add(piece);
    return true;
  }
}
