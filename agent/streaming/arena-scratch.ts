import { CallbackBufferType } from '../../native/callback-buffer-type.ts';
import type { Pointer } from '../../native/signature.ts';
import type { PoolPart } from '../backend/pool-memory.ts';
import type { ScratchMemory, ScratchSource } from '../engine/scratch.ts';
import type { DevicePool, PoolRange } from '../memory/device-pool.ts';

/** Least that is taken; more is taken in powers of two, so that parts of almost one size have one memory. */
const piece_bytes_min = 256 * 1024;

/** A range that results of several parts have. */
interface SharedPiece {
  readonly place: PoolRange;
  users: number;
}

/**
 * Results of the graphs of all parts lie over one another: one part computes at a time, and what leaves it is copied
 * before the next one begins. Where a part needs more than there is, it has a larger piece of the pool, and the others
 * follow it there when they need more themselves.
 */
export class ArenaScratch implements ScratchSource {
  readonly #pool: DevicePool;
  #latest: SharedPiece | undefined;

  constructor(pool: DevicePool) {
    this.#pool = pool;
  }

  open(): ScratchMemory {
    return new PartScratch(this.#pool, {
      take: (bytes) => this.#take(bytes),
      give: (piece) => this.#give(piece),
    });
  }

  #take(bytes: number): SharedPiece | undefined {
    if (this.#latest && bytes <= this.#latest.place.bytes) {
      this.#latest.users++;
      return this.#latest;
    }
    const size = Math.max(piece_bytes_min, 2 ** Math.ceil(Math.log2(bytes)));
    const place = this.#pool.reserve(size, 'scratch', 'models that are streamed');
    if (!place) return undefined;
    this.#latest = { place, users: 1 };
    return this.#latest;
  }

  #give(piece: SharedPiece): void {
    if (--piece.users > 0) return;
    if (this.#latest === piece) this.#latest = undefined;
    piece.place.give();
  }
}

interface Pieces {
  /** @returns undefined where there is no room for it */
  take(bytes: number): SharedPiece | undefined;
  give(piece: SharedPiece): void;
}

class PartScratch implements ScratchMemory {
  readonly #type: CallbackBufferType;
  readonly #pieces: Pieces;
  #piece: SharedPiece | undefined;
  #part: PoolPart | undefined;

  constructor({ backend, memory }: DevicePool, pieces: Pieces) {
    const { ggml, plain } = backend;
    this.#pieces = pieces;
    this.#type = new CallbackBufferType(ggml, plain, (bytes) => {
      // ggml has let go of the old buffer before it asks for another.
      this.#release();
      this.#piece = pieces.take(bytes);
      // A model that runs must go on: where the pool is full, its results lie outside.
      if (!this.#piece) return ggml.ggml_backend_buft_alloc_buffer(plain, bytes) ?? undefined;
      this.#part = memory.part(this.#piece.place.offset, bytes);
      return this.#part?.buffer;
    });
  }

  get bufferType(): Pointer {
    return this.#type.pointer;
  }

  /** Other parts have it, too. */
  get pool_bytes(): number {
    return this.#piece?.place.bytes ?? 0;
  }

  free(): void {
    this.#release();
    this.#type.free();
  }

  #release(): void {
    this.#part?.end();
    this.#part = undefined;
    if (this.#piece) this.#pieces.give(this.#piece);
    this.#piece = undefined;
  }
}
