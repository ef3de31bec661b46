/** A memory that frames lie in between two stages, whoever writes them there. */
import { z } from 'zod';
import { frame_memory_bytes } from '../../spec/worker-memory.ts';
import { damaged } from './frame.ts';

/** A frame in it, and up to where all frames are that were written so far, counted from the first one. */
export const parcelMetaSchema = z.strictObject({
  at: z.int().min(0).max(frame_memory_bytes),
  bytes: z.int().min(1).max(frame_memory_bytes),
  end: z.int().min(1),
});
export type Parcel = z.infer<typeof parcelMetaSchema>;

/** Up to where they were copied out. */
export const takenMetaSchema = z.strictObject({ end: z.int().min(1) });

/** Places in it, one behind the other and around: none is given again before what lay there was taken. */
export class FrameRoom {
  readonly #bytes: number;
  #written = 0;
  #taken = 0;

  constructor(bytes: number) {
    this.#bytes = bytes;
  }

  /** @returns undefined where there is no room for so much in one piece (now) */
  place(bytes: number): Parcel | undefined {
    if (bytes > this.#bytes) return undefined;
    // Where nothing lies, all of it is free, wherever the last one ended.
    if (this.#taken === this.#written) {
      this.#written = Math.ceil(this.#written / this.#bytes) * this.#bytes;
      this.#taken = this.#written;
    }
    let begin = this.#written;
    let at = begin % this.#bytes;
    if (at + bytes > this.#bytes) {
      begin += this.#bytes - at;
      at = 0;
    }
    const end = begin + bytes;
    if (end - this.#taken > this.#bytes) return undefined;
    this.#written = end;
    return { at, bytes, end };
  }

  /** @throws HpcserveError E_STAGE_FRAME: nothing was written there */
  taken(end: number): void {
    if (end < this.#taken || end > this.#written)
      throw damaged(`frames up to ${end} were taken of ${this.#written} bytes`);
    this.#taken = end;
  }
}
