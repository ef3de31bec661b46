import type { TransferMemory } from '../../../native/fabric/memory.ts';
import type { ModelInfo } from '../../../spec/engine-contract.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import type { KvMemory } from '../../engine/kv-memory.ts';
import type { Stage } from '../../engine/stage.ts';
import { layersOf, rowPieces } from '../../pipeline/kv-rows.ts';
import { countRows, type KvPiece, rowsOf } from '../../pipeline/layout-messages.ts';
import type { ArrivingRows, RowTarget, RowTransfers } from '../../pipeline/row-transfers.ts';
import type { KvShapeOfStage, KvTold, RowsAsk } from './kv-messages.ts';
import type { FromCompute } from './messages.ts';

/** What rows of the stages of a model are; undefined where the main thread cannot reach them. */
export function stageKvOf(
  { row_bytes, head_dim, storage, n_matrices }: KvMemory,
  { n_head_kv }: ModelInfo,
  identity: string,
  memory: TransferMemory | undefined,
): KvShapeOfStage | undefined {
  if (!memory || (n_matrices > 0 && !storage.poolOffset)) return undefined;
  return { row_bytes, n_head_kv, head_dim, memory, identity };
}

interface RowsSurroundings {
  /** Whether the main thread can reach memory of this device. */
  addressable(): boolean;
  /** Who has stages of a model here; undefined where nobody does. */
  targetOf(model: string): RowTarget | undefined;
  send(message: FromCompute): void;
}

/**
 * Keys and values of stages that leave the compute thread beside the rings, and come to it, while layouts change. The
 * main thread moves the bytes; here it is said where they lie.
 *
 *     leave:  send ─► (rows) ─► nothing, since the target tells; or `failed`
 *     come:   reserve ─► commit | abort        their memory is kept until then, whatever becomes of the change
 */
export class StageRows {
  readonly #around: RowsSurroundings;
  readonly #leaving = new Map<number, (because: string) => void>();
  readonly #coming = new Map<string, ArrivingRows>();
  #sent = 0;

  constructor(around: RowsSurroundings) {
    this.#around = around;
  }

  /** For the stages of one model. */
  transfersOf(model: string): RowTransfers {
    return {
      send: (refactoring, piece, stage, failed) => this.#begin(model, refactoring, piece, stage, failed),
    };
  }

  /** The main thread has tried: rows that were brought are the target's to tell of. */
  sent(id: number, because: string | undefined): void {
    const failed = this.#leaving.get(id);
    this.#leaving.delete(id);
    if (because !== undefined) failed?.(because);
  }

  /** @throws HpcserveError E_KV_STALE, E_KV_FORMAT */
  answer(asked: RowsAsk): KvTold {
    switch (asked.do) {
      case 'reserve_rows':
        return this.#reserve(asked);
      case 'commit_rows':
        this.#end(asked.arrival, asked.way);
        return undefined;
      case 'abort_rows':
        this.#end(asked.arrival);
        return undefined;
    }
  }

  /** The thread ends, and no transfer is under way any more. */
  close(): void {
    for (const arrival of [...this.#coming.keys()]) this.#end(arrival);
  }

  #begin(
    model: string,
    refactoring: number,
    piece: KvPiece,
    { kv, model: { n_layer } }: Stage,
    failed: (because: string) => void,
  ): boolean {
    const layers = layersOf(piece, n_layer);
    const pieces = this.#around.addressable() ? rowPieces(kv, layers, rowsOf(piece)) : undefined;
    if (!pieces) return false;
    const id = ++this.#sent;
    this.#leaving.set(id, failed);
    this.#around.send({
      type: 'rows',
      id,
      model,
      refactoring,
      piece,
      layers,
      rows: countRows(piece),
      pieces,
    });
    return true;
  }

  #reserve({ model, arrival, refactoring, piece }: RowsAsk & { do: 'reserve_rows' }): KvTold {
    const target = this.#around.targetOf(model);
    if (!target || this.#coming.has(arrival))
      throw new HpcserveError('E_KV_STALE', {
        what: `rows came for a stage of ${model}`,
        because: target ? 'they are on their way already' : 'no stage of it is here',
      });
    const arriving = target.receive(refactoring, piece);
    this.#coming.set(arrival, arriving);
    return arriving.pieces;
  }

  /** @param way absent: they did not come */
  #end(arrival: string, way?: string): void {
    const arriving = this.#coming.get(arrival);
    this.#coming.delete(arrival);
    arriving?.end();
    if (way !== undefined) arriving?.commit(way);
  }
}
