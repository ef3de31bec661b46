import type { BlockRows } from '../../solver/refactoring/copy-mask.ts';
import type { KvTransfer } from '../../solver/refactoring/layout.ts';
import type { RefactoringEvent } from '../../solver/refactoring/messages.ts';
import type { Stage } from '../engine/stage.ts';
import type { ChangingExecutor } from './changing-executor.ts';
import { CopyRounds } from './copy-rounds.ts';
import { encodeKv, storeKv } from './device-stages.ts';
import { decodeFrame, encodeJsonFrame, type FrameBytes, metaOf } from './frame.ts';
import type { FramePort } from './frame-port.ts';
import { copiedMetaSchema, type KvPiece, kvMetaSchema } from './layout-messages.ts';
import type { RefactoringBounds } from './refactoring-bounds.ts';
import {
  type ArrivingRows,
  ArrivingTransfers,
  overChange,
  type RowTarget,
  type RowTransfers,
} from './row-transfers.ts';

interface RowCopiesParts {
  /** Of the change. */
  id: number;
  /** Identity of this device. */
  own: string;
  executor: ChangingExecutor;
  bounds: RefactoringBounds;
  /** Beside the rings; absent: there are none. */
  transfers: RowTransfers | undefined;
  /** Of the layout to come. */
  next: FramePort | undefined;
  /** By which devices of the old layout are told to send rows: its ring, and the next one where that is lost. */
  order(): FramePort | undefined;
  /** Of this device in the layout to come, once it is there. */
  stage(): Stage | undefined;
  hear(event: RefactoringEvent): void;
}

/**
 * The coordinator's part in bringing keys and values to where they are computed next. While batches are computed beside
 * it, rows go from worker to worker by transfers of their own where there are any (agent/transfer), in large pieces
 * that no batch waits behind. What follows once nothing is computed is little, and nobody waits for those to be
 * arranged: it goes by the rings, as all of it does where a transfer failed.
 */
export class RowCopies implements RowTarget {
  /** Bytes by the way that they took, for people. */
  readonly bytes_by_way: Record<string, number> = {};
  readonly #parts: RowCopiesParts;
  readonly #rounds: CopyRounds;
  readonly #arriving = new ArrivingTransfers();
  /** Of workers, by device. */
  #sessions: ReadonlyMap<string, string | undefined> = new Map();
  /** Transfers that have failed beside the rings, so that they take those. */
  readonly #byRing = new Set<number>();

  constructor(parts: RowCopiesParts) {
    this.#parts = parts;
    const { executor, bounds } = parts;
    this.#rounds = new CopyRounds(executor.stage.kv, executor.model.n_layer, bounds, (piece) =>
      this.#order(piece),
    );
  }

  /** Rounds of the transfer that had most. */
  get rounds(): number {
    return this.#rounds.rounds;
  }

  get bytes_moved(): number {
    return this.#rounds.bytes_moved;
  }

  /**
   * Rows of a transfer come to this device beside the rings, or leave it so: where they lie, that they are there, and
   * that they do not come, is told between two iterations.
   */
  needsTurns(transfer: number, { from, to }: KvTransfer): boolean {
    const { own } = this.#parts;
    if (from !== own && to !== own) return false;
    return this.#rounds.isBeside(transfer) || this.#arriving.has({ transfer, from });
  }

  /** Which worker has which device of the layout to come. */
  met(stages: readonly { device_identity: string; session?: string | undefined }[]): void {
    this.#sessions = new Map(stages.map(({ device_identity, session }) => [device_identity, session]));
  }

  /** @param beside batches are computed meanwhile */
  begin(
    order: KvTransfer & { transfer: number; round: number; rows: readonly BlockRows[] },
    beside: boolean,
  ): void {
    const session = this.#sessions.get(order.to);
    const to_session = beside && !this.#byRing.has(order.transfer) ? session : undefined;
    this.#rounds.begin(order, to_session);
  }

  /** @throws HpcserveError E_STAGE_FRAME */
  takeRows(bytes: FrameBytes): void {
    const frame = decodeFrame(bytes);
    const { refactoring, piece } = metaOf(frame, kvMetaSchema);
    const { id, own, next, stage } = this.#parts;
    if (refactoring !== id) return;
    const target = stage();
    if (piece.to !== own) next?.send(bytes);
    // It was there before: what followed it may be there by now.
    else if (this.#rounds.pendingBytes(piece) === undefined) return;
    else if (this.#arriving.has(piece)) this.#rounds.again(piece);
    else if (target) this.takeCopied(storeKv(frame, target));
  }

  /** @throws HpcserveError E_STAGE_FRAME */
  takeCopied(bytes: FrameBytes): void {
    const { refactoring, error, again, way = 'ring', ...of } = metaOf(decodeFrame(bytes), copiedMetaSchema);
    if (refactoring === 0) this.failed(error ?? 'a frame of it could not be read');
    else if (refactoring !== this.#parts.id) return;
    else if (error !== undefined) this.failed(error, of.transfer);
    else if (again !== undefined) this.#again(of);
    else this.#copied(of, way);
  }

  receive(refactoring: number, piece: KvPiece): ArrivingRows {
    const { id, own, stage } = this.#parts;
    const target = stage();
    if (refactoring !== id || piece.to !== own || !target) throw overChange(refactoring);
    return this.#arriving.open(target, piece, (way) => this.#copied(piece, way));
  }

  /** @param transfer absent: the first that something is waited for of */
  failed(because: string, transfer = this.#rounds.pending): void {
    if (transfer !== undefined) this.#parts.hear({ kind: 'copy_failed', transfer, because });
  }

  /** Nothing came of a transfer for longer than may be. */
  requireProgress(now_ms: number): void {
    this.#rounds.sendAgain();
    const silent = this.#rounds.silent(now_ms);
    if (silent) this.failed(`nothing came for ${silent.silence_ms / 1000} s`, silent.transfer);
  }

  #copied(of: Pick<KvPiece, 'transfer' | 'round' | 'piece'>, way: string): void {
    const { transfer, round } = of;
    const bytes = this.#rounds.pendingBytes(of);
    if (bytes === undefined) return;
    this.bytes_by_way[way] = (this.bytes_by_way[way] ?? 0) + bytes;
    if (this.#rounds.copied(of)) this.#parts.hear({ kind: 'copied', transfer, round });
  }

  #again(of: Pick<KvPiece, 'transfer' | 'round' | 'piece'>): void {
    this.#byRing.add(of.transfer);
    this.#rounds.again(of);
  }

  /** The rows are read behind every batch before: here they are written already, elsewhere it follows those batches. */
  #order(piece: KvPiece): void {
    const { id, own, executor, next, transfers } = this.#parts;
    const header = { epoch: executor.epoch, number: 0 };
    if (piece.from !== own) {
      const meta = { refactoring: id, pieces: [piece] };
      this.#parts.order()?.send(encodeJsonFrame({ kind: 'copies', ...header }, meta));
      return;
    }
    const { stage } = executor;
    if (piece.to_session === undefined) next?.send(encodeKv(header, id, piece, stage));
    else if (transfers) transfers.send(id, piece, stage, () => this.#again(piece));
    else this.#again(piece);
  }
}
