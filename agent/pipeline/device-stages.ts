import { monotonic_ms } from '../../host/clock.ts';
import type { HeldLayouts } from '../../solver/refactoring/held-layouts.ts';
import type { OperatorRange } from '../../solver/refactoring/layout.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { Stage } from '../engine/stage.ts';
import {
  allocateFrame,
  decodeFrame,
  encodeJsonFrame,
  type Frame,
  type FrameBytes,
  kindOf,
  metaOf,
  sealFrame,
} from './frame.ts';
import type { FramePort } from './frame-port.ts';
import { layers_row_bytes, layersOf, readKvRows, writeKvRows } from './kv-rows.ts';
import {
  copiedMetaSchema,
  copiesMetaSchema,
  type KvPiece,
  kvMetaSchema,
  releaseMetaSchema,
  rowsOf,
} from './layout-messages.ts';
import { PipelineStage, rangeOf, type StagePlace, type ToldFacts } from './pipeline-stage.ts';
import {
  type ArrivingRows,
  ArrivingTransfers,
  overChange,
  type RowTarget,
  type RowTransfers,
} from './row-transfers.ts';
import { beginMetaSchema } from './stage-facts.ts';
import { StoredPieces } from './stored-pieces.ts';

/** A stage of one layout, at its place in the ring of that layout. */
interface RingStage {
  readonly range: OperatorRange;
  readonly stage: PipelineStage;
  readonly port: FramePort;
  /** Of the change that brings its layout; undefined: it was there before any. */
  readonly refactoring: number | undefined;
  /** Rows that came by the rings. */
  readonly stored: StoredPieces;
}

/**
 * What a device behind the coordinator has of one pipeline: its stage of the layout that computes, and while that
 * changes its stage of the next one, each in a ring of its own. Batches go to the stage whose epoch it is; rows of KV
 * come and go between the two.
 *
 *     ring of the old layout ──► #serving        batches · orders to copy
 *     ring of the new layout ──► #prepared       rows of KV · begin ──► it serves; the other stays for the way back
 *     transfers of their own ──► #prepared       rows of KV
 */
export class DeviceStages implements RowTarget {
  readonly #device: string;
  readonly #told: ToldFacts;
  readonly #held: HeldLayouts;
  readonly #transfers: RowTransfers | undefined;
  /** That write to the stage of the layout to come. */
  readonly #arriving = new ArrivingTransfers();
  #serving: RingStage | undefined;
  #other: RingStage | undefined;
  /** Frames that could not be used. */
  refused = 0;

  /**
   * @param held without a stage: `add` or `prepare` brings it
   * @param transfers beside the rings; absent: there are none
   */
  constructor(device: string, told: ToldFacts, held: HeldLayouts, transfers?: RowTransfers) {
    this.#device = device;
    this.#told = told;
    this.#held = held;
    this.#transfers = transfers;
  }

  /** The stage that computes, or will once its layout begins. */
  get stage(): PipelineStage | undefined {
    return this.#serving?.stage ?? this.#other?.stage;
  }

  get epoch(): number {
    return this.#held.epoch;
  }

  /** Its stage in the layout that serves. */
  get serving(): PipelineStage | undefined {
    return this.#serving?.stage;
  }

  /** The change that brought it; undefined: it was there before any, or there is none. */
  get refactoring(): number | undefined {
    return this.#serving?.refactoring;
  }

  get prepared(): PipelineStage | undefined {
    return this.#other?.stage;
  }

  /** The stage that it is opened with. */
  add(stage: Stage, place: StagePlace, port: FramePort): PipelineStage {
    const piped = new PipelineStage(stage, place, this.#told, this.#held);
    const range = rangeOf(stage);
    this.#serving = { range, stage: piped, port, refactoring: undefined, stored: new StoredPieces() };
    return piped;
  }

  /** Its stage in the layout that is to come. */
  prepare(refactoring: number, stage: Stage, place: StagePlace, port: FramePort): PipelineStage {
    this.#drop(this.#other);
    const range = rangeOf(stage);
    this.#held.prepare(range);
    const piped = new PipelineStage(stage, place, this.#told, this.#held);
    this.#other = { range, stage: piped, port, refactoring, stored: new StoredPieces() };
    return piped;
  }

  /** The change is given up: its stage goes, unless it serves by now, or a later change has taken its place. */
  unprepare(refactoring: number): void {
    const given_up = this.#other;
    // What served before the last change is held for the way back.
    if (given_up?.refactoring !== refactoring || refactoring < (this.#serving?.refactoring ?? 0)) return;
    this.#held.release(this.#serving?.range);
    this.#drop(given_up);
    this.#other = undefined;
  }

  /**
   * One frame of each ring.
   * @param keepPace of an emulated device: returns once a batch that began then has taken its declared time
   * @returns whether there was any
   * @throws HpcserveError E_STAGE_MISMATCH: a neighbour is of another version; E_DEVICE_FAILED, once others were told
   */
  serve(keepPace: (began_ms: number) => void = () => undefined): boolean {
    let served = false;
    for (const own of [this.#serving, this.#other]) if (own && this.#serve(own, keepPace)) served = true;
    return served;
  }

  receive(refactoring: number, piece: KvPiece): ArrivingRows {
    const target = this.#other;
    if (!target || target.refactoring !== refactoring || piece.to !== this.#device)
      throw overChange(refactoring);
    return this.#arriving.open(target.stage.stage, piece, (way) =>
      this.#tellCopied(target, refactoring, piece, { way }),
    );
  }

  free(): void {
    this.#drop(this.#serving);
    this.#drop(this.#other);
    this.#serving = undefined;
    this.#other = undefined;
  }

  #serve(own: RingStage, keepPace: (began_ms: number) => void): boolean {
    let bytes: FrameBytes | undefined;
    try {
      bytes = own.port.poll();
      if (!bytes) return false;
      const began_ms = performance.now();
      const isBatch = kindOf(bytes) === 'batch';
      const next = this.#take(own, bytes, Math.round(1000 * (monotonic_ms() - own.port.came_ms)));
      if (isBatch) keepPace(began_ms);
      if (next) own.port.send(next);
      return true;
    } catch (error) {
      if (!(error instanceof HpcserveError)) throw error;
      // Of a layout to come, who changes it hears the same.
      if (error.code === 'E_STAGE_MISMATCH' && own === this.#serving) throw error;
      this.#failed(own, bytes, error);
      if (error.code === 'E_DEVICE_FAILED') throw error;
      return true;
    }
  }

  #take(own: RingStage, bytes: FrameBytes, queued_us: number): FrameBytes | undefined {
    switch (kindOf(bytes)) {
      case 'copies':
        return this.#copies(own, bytes);
      case 'kv':
        return this.#kv(bytes);
      case 'copied':
        metaOf(decodeFrame(bytes), copiedMetaSchema);
        return bytes;
      case 'release':
        return this.#release(own, bytes);
      case 'begin':
        return this.#begin(own, bytes);
      default:
        return own.stage.take(bytes, queued_us);
    }
  }

  /** The ring broke, or what came over it cannot be used: who waits for it is told where that is still possible. */
  #failed(own: RingStage, bytes: FrameBytes | undefined, error: HpcserveError): void {
    const kind = bytes && kindOf(bytes);
    if (error.code === 'E_STAGE_LOST' || !bytes) {
      // The coordinator opens it anew, under another epoch.
      own.stage.interrupt();
      return;
    }
    this.refused++;
    const header = { epoch: this.#held.epoch, number: 0 };
    if (kind === 'kv' || kind === 'copies' || kind === 'copied' || kind === 'release') {
      const meta = { refactoring: 0, transfer: 0, round: 0, piece: 0, error: error.toText() };
      own.port.send(encodeJsonFrame({ kind: 'copied', ...header }, meta));
      return;
    }
    own.stage.interrupt();
    own.port.send(encodeJsonFrame({ kind: 'failed', ...header }, own.stage.failure(error)));
  }

  #begin(own: RingStage, bytes: FrameBytes): FrameBytes | undefined {
    const { refactoring } = metaOf(decodeFrame(bytes), beginMetaSchema);
    const next = own.stage.take(bytes);
    if (!next) return undefined;
    const isFollowing = own !== this.#serving;
    if (isFollowing) [this.#serving, this.#other] = [own, this.#serving];
    // Of a pipeline that rested, the change may be what it came back for.
    const isToCome = !isFollowing && (this.#other?.refactoring ?? 0) > (own.refactoring ?? 0);
    // One that was opened anew needs nothing of another layout.
    if (refactoring === undefined && !isToCome) this.#keep(own);
    return next;
  }

  #copies(own: RingStage, bytes: FrameBytes): FrameBytes {
    const frame = decodeFrame(bytes);
    const { refactoring, pieces } = metaOf(frame, copiesMetaSchema);
    const mine = pieces.filter(({ from }) => from === this.#device);
    // Of both stages the one in which it computes the rows.
    const source = (this.#serving ?? own).stage.stage;
    // Over the new ring where it is in the new layout; else the coordinator passes it on.
    const by = this.#other?.refactoring === refactoring ? this.#other : own;
    for (const piece of mine) {
      if (piece.to_session === undefined) {
        by.port.send(encodeKv(frame, refactoring, piece, source));
        continue;
      }
      const again = (because: string): void => this.#tellCopied(by, refactoring, piece, { again: because });
      if (this.#transfers) this.#transfers.send(refactoring, piece, source, again);
      else again('this device has no way beside the rings');
    }
    return bytes;
  }

  /** The coordinator hears of rows that took another way than the rings, unless the change is over. */
  #tellCopied(
    by: RingStage,
    refactoring: number,
    { transfer, round, piece }: KvPiece,
    how: { way: string } | { again: string },
  ): void {
    if (by !== this.#serving && by !== this.#other) return;
    const meta = { refactoring, transfer, round, piece, ...how };
    by.port.send(encodeJsonFrame({ kind: 'copied', epoch: this.#held.epoch, number: 0 }, meta));
  }

  #kv(bytes: FrameBytes): FrameBytes | undefined {
    const frame = decodeFrame(bytes);
    const { refactoring, piece } = metaOf(frame, kvMetaSchema);
    if (piece.to !== this.#device) return bytes;
    const target = this.#other;
    if (!target || target.refactoring !== refactoring) {
      // Of a change that is over: its memory may be another's by now.
      this.refused++;
      return undefined;
    }
    if (this.#arriving.has(piece))
      this.#tellCopied(target, refactoring, piece, { again: 'a transfer still writes there' });
    else if (target.stored.take(piece)) target.port.send(storeKv(frame, target.stage.stage));
    // What followed it may be there by now.
    else this.refused++;
    return undefined;
  }

  #release(own: RingStage, bytes: FrameBytes): FrameBytes {
    const { refactoring, layout } = metaOf(decodeFrame(bytes), releaseMetaSchema);
    const part = layout.find(({ device }) => device === this.#device);
    // A device that is in no layout any more is told by its agent.
    const isOurs = [this.#serving, this.#other].some((each) => each?.refactoring === refactoring);
    // The next change may have begun meanwhile: then what was held of this one is gone already.
    const isOver = (this.#other?.refactoring ?? 0) > refactoring;
    if (part && isOurs && !isOver) this.#keep(this.#serving ?? own);
    return bytes;
  }

  #keep(own: RingStage): void {
    this.#held.release(own.range);
    if (this.#other && this.#other !== own) this.#drop(this.#other);
    this.#other = undefined;
    this.#serving = own;
  }

  #drop(own: RingStage | undefined): void {
    if (!own) return;
    own.port.close();
    own.stage.free();
  }
}

/** Rows of a stage as they travel. @throws HpcserveError E_STAGE_FRAME: it does not have them */
export function encodeKv(
  { epoch, number }: Pick<Frame, 'epoch' | 'number'>,
  refactoring: number,
  piece: KvPiece,
  { kv, model }: Stage,
): FrameBytes {
  const layers = layersOf(piece, model.n_layer);
  const rows = rowsOf(piece);
  const n_rows = rows.reduce((sum, { begin, end }) => sum + end - begin, 0);
  const meta = Buffer.from(JSON.stringify({ refactoring, piece }));
  // A row has whole words of 4 bytes; see `KvMemory`.
  const frame = allocateFrame(
    { kind: 'kv', epoch, number },
    meta,
    (n_rows * layers_row_bytes(kv, layers)) / 4,
  );
  const { buffer, byteOffset, byteLength } = frame.payload;
  readKvRows(kv, layers, rows, new Uint8Array(buffer, byteOffset, byteLength));
  return sealFrame(frame);
}

/** Writes rows that came. @returns the answer for the coordinator */
export function storeKv(frame: Frame, { kv, model }: Stage): FrameBytes {
  const { refactoring, piece } = metaOf(frame, kvMetaSchema);
  const told = { refactoring, transfer: piece.transfer, round: piece.round, piece: piece.piece };
  const header = { kind: 'copied', epoch: frame.epoch, number: frame.number } as const;
  const { buffer, byteOffset, byteLength } = frame.payload;
  try {
    const bytes = new Uint8Array(buffer, byteOffset, byteLength);
    writeKvRows(kv, layersOf(piece, model.n_layer), rowsOf(piece), bytes);
  } catch (error) {
    return encodeJsonFrame(header, { ...told, error: HpcserveError.from(error).toText() });
  }
  return encodeJsonFrame(header, told);
}
