/** Keys and values that come from one device to another beside the rings, while a layout changes. */
import type { MemoryPiece } from '../../native/fabric/memory.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { Stage } from '../engine/stage.ts';
import { layersOf, rowPieces, writeKvRows } from './kv-rows.ts';
import { type KvPiece, rowsOf } from './layout-messages.ts';

/** How rows leave this device. */
export interface RowTransfers {
  /**
   * Begins to bring rows of a stage to the worker that the piece names. That they are there, the target tells.
   * @param failed called once at most: they do not come so
   */
  send(refactoring: number, piece: KvPiece, stage: Stage, failed: (because: string) => void): void;
}

/** Rows that a transfer writes: their memory is nobody else's before it has ended. */
export interface ArrivingRows {
  /** Where they belong, in the order in which a frame has them; undefined: others cannot address that. */
  readonly pieces: MemoryPiece[] | undefined;
  /** Writes all of them from memory of the host, in that order. @throws HpcserveError E_STAGE_FRAME */
  write(from: Uint8Array): void;
  /** All of them are there. */
  commit(way: string): void;
  /** Nothing writes there any more, whether they came or not. */
  end(): void;
}

/** Where rows come to. */
export interface RowTarget {
  /** @throws HpcserveError E_KV_STALE: the change is over; E_KV_FORMAT: the stage's memory cannot be held for it */
  receive(refactoring: number, piece: KvPiece): ArrivingRows;
}

/** Transfers that write to one stage. */
export class ArrivingTransfers {
  readonly #open: KvPiece[] = [];

  /** @param arrived hears of rows that are all there, and how they came */
  open(stage: Stage, piece: KvPiece, arrived: (way: string) => void): ArrivingRows {
    const { kv, model } = stage;
    const layers = layersOf(piece, model.n_layer);
    const rows = rowsOf(piece);
    const pieces = rowPieces(kv, layers, rows);
    const letGo = kv.storage.hold?.(layers);
    if (!letGo)
      throw new HpcserveError('E_KV_FORMAT', {
        what: 'rows of a stage cannot come beside the ring',
        because: 'its memory is not that of a stage which changes',
      });
    this.#open.push(piece);
    return {
      pieces,
      write: (from) => writeKvRows(kv, layers, rows, from),
      commit: arrived,
      end: () => {
        const at = this.#open.indexOf(piece);
        if (at >= 0) this.#open.splice(at, 1);
        letGo();
      },
    };
  }

  /** Rows of a transfer are still being written: what came by the ring would be written over by what is older. */
  has({ transfer, from }: Pick<KvPiece, 'transfer' | 'from'>): boolean {
    return this.#open.some((piece) => piece.transfer === transfer && piece.from === from);
  }
}

/** E_KV_STALE. */
export function overChange(refactoring: number): HpcserveError {
  return new HpcserveError('E_KV_STALE', {
    what: `rows came for change ${refactoring} of a pipeline`,
    because: 'it is over, or has not come to this device',
  });
}
