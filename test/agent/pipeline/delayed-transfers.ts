/** Transfers of rows within one process: real memory of real pools, bytes that come late, in halves, or not at all. */

import type { Backend } from '../../../agent/backend/backend.ts';
import type { Stage } from '../../../agent/engine/stage.ts';
import { DevicePool } from '../../../agent/memory/device-pool.ts';
import { layers_row_bytes, layersOf, readKvRows, rowPieces } from '../../../agent/pipeline/kv-rows.ts';
import { countRows, type KvPiece, rowsOf } from '../../../agent/pipeline/layout-messages.ts';
import type { ArrivingRows, RowTarget, RowTransfers } from '../../../agent/pipeline/row-transfers.ts';
import type { MemoryPiece } from '../../../native/fabric/memory.ts';
import { seededRandom } from '../../../solver/simulator/random.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import { testBackend } from '../engine/test-backend.ts';

interface Transfer {
  refactoring: number;
  piece: KvPiece;
  /** The rows as they are at the source now. */
  read: () => Uint8Array;
  failed: (because: string) => void;
  arriving?: ArrivingRows;
  /** What has come, where the device's memory is not written as it comes. */
  staged?: Uint8Array;
  /** Halves that are written. */
  written: number;
  /** Steps until it goes on. */
  delay: number;
}

/** What becomes of the n-th transfer. */
export type Fate = 'arrives' | 'refused' | 'breaks';

/**
 * As transfers between workers: the source is read when bytes are sent and not when they are asked for, and the target
 * is written whatever it does meanwhile, until the transfer has ended: as bytes come, or all at once at the end where
 * others cannot address its memory.
 */
export class DelayedTransfers {
  /** By device. */
  readonly pools = new Map<string, DevicePool>();
  targetOf: (device: string) => RowTarget | undefined = () => undefined;
  /** Whether a device answers now what is asked of its rows. */
  answers: (device: string) => boolean = () => true;
  /** What computes of a device. */
  backendOf: (device: string) => Backend = testBackend;
  arrived = 0;
  failed = 0;
  readonly #random: () => number;
  readonly #delay_max: number;
  readonly #fate: (nth: number) => Fate;
  #under_way: Transfer[] = [];
  #sent = 0;

  /** @param delay_max steps between two things that a transfer does, drawn by seed */
  constructor(seed: number, delay_max: number, fate: (nth: number) => Fate = () => 'arrives') {
    this.#random = seededRandom(seed);
    this.#delay_max = delay_max;
    this.#fate = fate;
  }

  poolOf(device: string): DevicePool {
    const known = this.pools.get(device);
    if (known) return known;
    const pool = new DevicePool(this.backendOf(device), { pool_bytes: 32 * 2 ** 20, threads: 1 });
    this.pools.set(device, pool);
    return pool;
  }

  of(device: string): RowTransfers {
    return {
      send: (refactoring, piece, stage, failed) => {
        this.#under_way.push({
          refactoring,
          piece,
          read: () => readRows(this.poolOf(device), stage, piece),
          failed,
          written: 0,
          delay: this.#draw(),
        });
      },
    };
  }

  /** Transfers that write to their targets. */
  get writing(): number {
    return this.#under_way.filter(({ arriving }) => arriving !== undefined).length;
  }

  isWritingTo(device: string): boolean {
    return this.#under_way.some(({ arriving, piece }) => arriving !== undefined && piece.to === device);
  }

  /** A device is gone, and nothing more comes of what it sends. */
  lose(device: string): void {
    for (const transfer of this.#under_way.splice(0))
      if (transfer.piece.from === device) transfer.arriving?.end();
      else this.#under_way.push(transfer);
  }

  /** The source hears that transfers that have begun have failed, while the target still has them. */
  giveUpSource(): void {
    for (const transfer of this.#under_way) {
      if (!transfer.arriving) continue;
      transfer.failed('nothing was heard of it');
      transfer.failed = () => undefined;
    }
  }

  /** @returns whether any is under way */
  step(): boolean {
    const now = this.#under_way.splice(0);
    for (const transfer of now)
      if (transfer.delay-- > 0 || this.#go(transfer)) this.#under_way.push(transfer);
    return now.length > 0;
  }

  /** @returns whether it goes on */
  #go(transfer: Transfer): boolean {
    const { from, to } = transfer.piece;
    if (!this.answers(from) || !this.answers(to)) return true;
    transfer.delay = this.#draw();
    if (!transfer.arriving) return this.#reserve(transfer);
    if (transfer.written < 2) {
      this.#write(transfer);
      if (transfer.written === 1 && this.#fate(this.#sent++) === 'breaks') {
        transfer.arriving.end();
        return this.#fail(transfer, 'it broke');
      }
      return true;
    }
    if (transfer.staged) transfer.arriving.write(transfer.staged);
    transfer.arriving.end();
    transfer.arriving.commit('sendfile');
    this.arrived++;
    return false;
  }

  #reserve(transfer: Transfer): boolean {
    const { refactoring, piece } = transfer;
    try {
      const target = this.targetOf(piece.to);
      if (!target || this.#fate(this.#sent) === 'refused') {
        this.#sent++;
        return this.#fail(transfer, 'nobody is there');
      }
      transfer.arriving = target.receive(refactoring, piece);
      return true;
    } catch (error) {
      if (!(error instanceof HpcserveError)) throw error;
      return this.#fail(transfer, error.message);
    }
  }

  #fail({ failed }: Transfer, because: string): false {
    this.failed++;
    failed(because);
    return false;
  }

  /** Half of the bytes, as they are at the source now. */
  #write(transfer: Transfer): void {
    const { piece, arriving } = transfer;
    const bytes = transfer.read();
    const half = Math.floor(bytes.length / 2);
    const part = transfer.written === 0 ? { begin: 0, end: half } : { begin: half, end: bytes.length };
    const { pieces } = arriving!;
    if (pieces) writePieces(this.poolOf(piece.to), pieces, bytes, part);
    else {
      transfer.staged ??= new Uint8Array(bytes.length);
      transfer.staged.set(bytes.subarray(part.begin, part.end), part.begin);
    }
    transfer.written++;
  }

  #draw(): number {
    return Math.floor(this.#random() * (this.#delay_max + 1));
  }
}

function readRows(pool: DevicePool, { kv, model }: Stage, piece: KvPiece): Uint8Array {
  const layers = layersOf(piece, model.n_layer);
  const pieces = rowPieces(kv, layers, rowsOf(piece));
  if (!pieces) {
    const rows = new Uint8Array(countRows(piece) * layers_row_bytes(kv, layers));
    readKvRows(kv, layers, rowsOf(piece), rows);
    return rows;
  }
  const all = pieces.map(({ offset, bytes }) => {
    const into = new Uint8Array(bytes);
    pool.memory.read(offset, into);
    return into;
  });
  return Buffer.concat(all);
}

/** Of the bytes of all pieces, those [begin, end). */
function writePieces(
  pool: DevicePool,
  pieces: readonly MemoryPiece[],
  from: Uint8Array,
  { begin, end }: { begin: number; end: number },
): void {
  let at = 0;
  for (const { offset, bytes } of pieces) {
    const first = Math.max(at, begin);
    const last = Math.min(at + bytes, end);
    if (first < last) pool.memory.write(offset + first - at, from.subarray(first, last));
    at += bytes;
  }
}
