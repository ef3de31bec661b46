import type { TransferMemory } from '../../../native/fabric/memory.ts';
import { memoryAt } from '../../../native/ggml.ts';
import type { ModelInfo } from '../../../spec/engine-contract.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import type { KvMemory } from '../../engine/kv-memory.ts';
import type { Stage } from '../../engine/stage.ts';
import { layers_row_bytes, layersOf, readKvRows, rowPieces } from '../../pipeline/kv-rows.ts';
import { countRows, type KvPiece, rowsOf } from '../../pipeline/layout-messages.ts';
import type { ArrivingRows, RowTarget, RowTransfers } from '../../pipeline/row-transfers.ts';
import type { HostRoom, KvShapeOfStage, KvTold, RowsAsk } from './kv-messages.ts';
import type { FromCompute } from './messages.ts';

/**
 * What rows of the stages of a model are; undefined where they are not in the pool.
 * @param memory of the pool, where others can address it
 */
export function stageKvOf(
  { row_bytes, head_dim, storage, n_matrices }: KvMemory,
  { n_head_kv }: ModelInfo,
  identity: string,
  memory: TransferMemory | undefined,
): KvShapeOfStage | undefined {
  if (memory && n_matrices > 0 && !storage.poolOffset) return undefined;
  return { row_bytes, n_head_kv, head_dim, memory, identity };
}

interface RowsSurroundings {
  /** Who has stages of a model here; undefined where nobody does. */
  targetOf(model: string): RowTarget | undefined;
  send(message: FromCompute): void;
}

/** Rows that leave. */
interface Leaving {
  failed: (because: string) => void;
  /** Copies them to memory of the host. @returns bytes @throws HpcserveError E_STAGE_FRAME, E_KV_ROOM */
  read(into: HostRoom): number;
}

/**
 * Keys and values of stages that leave the compute thread beside the rings, and come to it, while layouts change. The
 * main thread moves the bytes; here it is said where they lie, or they are copied to and from memory of the host where
 * others cannot address the device's.
 *
 *     leave:  send ─► (rows) [─► read] ─► nothing, since the target tells; or `failed`
 *     come:   reserve ─► commit | abort        their memory is kept until then, whatever becomes of the change
 */
export class StageRows {
  readonly #around: RowsSurroundings;
  readonly #leaving = new Map<number, Leaving>();
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
    const leaving = this.#leaving.get(id);
    this.#leaving.delete(id);
    if (because !== undefined) leaving?.failed(because);
  }

  /** @throws HpcserveError E_KV_STALE, E_KV_FORMAT, E_KV_ROOM, E_STAGE_FRAME */
  answer(asked: RowsAsk): KvTold {
    switch (asked.do) {
      case 'read_rows':
        return this.#read(asked.id, asked.into);
      case 'reserve_rows':
        return this.#reserve(asked);
      case 'commit_rows':
        this.#commit(asked);
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
  ): void {
    const layers = layersOf(piece, n_layer);
    const rows = rowsOf(piece);
    const bytes = countRows(piece) * layers_row_bytes(kv, layers);
    const read = ({ address, bytes: room_bytes }: HostRoom): number => {
      if (bytes > room_bytes)
        throw new HpcserveError('E_KV_ROOM', {
          what: `rows of ${bytes} bytes do not fit into ${room_bytes} bytes of the host`,
        });
      readKvRows(kv, layers, rows, memoryAt(address, bytes));
      return bytes;
    };
    const id = ++this.#sent;
    this.#leaving.set(id, { failed, read });
    this.#around.send({
      type: 'rows',
      id,
      model,
      refactoring,
      piece,
      layers,
      rows: countRows(piece),
      pieces: rowPieces(kv, layers, rows),
    });
  }

  #read(id: number, into: HostRoom): number {
    const leaving = this.#leaving.get(id);
    if (!leaving) throw new HpcserveError('E_KV_STALE', { what: `rows ${id} do not leave any more` });
    return leaving.read(into);
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

  #commit({ arrival, way, from }: RowsAsk & { do: 'commit_rows' }): void {
    try {
      if (from) this.#coming.get(arrival)?.write(memoryAt(from.address, from.bytes));
    } catch (error) {
      this.#end(arrival);
      throw error;
    }
    this.#end(arrival, way);
  }

  /** @param way absent: they did not come */
  #end(arrival: string, way?: string): void {
    const arriving = this.#coming.get(arrival);
    this.#coming.delete(arrival);
    arriving?.end();
    if (way !== undefined) arriving?.commit(way);
  }
}
