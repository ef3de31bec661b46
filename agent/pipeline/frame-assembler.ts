import { type FrameBytes, frame_header_bytes, length_bytes } from './frame.ts';

/** Puts the frames of a stream of bytes together, each in a buffer of its own. */
export class FrameAssembler {
  readonly #header = new Uint8Array(frame_header_bytes);
  #frame: FrameBytes | undefined;
  /** Bytes of the frame that are there. */
  #filled = 0;

  /** @throws HpcserveError E_STAGE_FRAME: what begins is no frame; E_STAGE_MISMATCH: one of another protocol */
  take(chunk: Uint8Array, onFrame: (frame: FrameBytes) => void): void {
    let at = 0;
    while (at < chunk.length) {
      const target: Uint8Array = this.#frame ?? this.#header;
      const count = Math.min(target.length - this.#filled, chunk.length - at);
      target.set(chunk.subarray(at, at + count), this.#filled);
      this.#filled += count;
      at += count;
      if (this.#filled < target.length) return;
      if (!this.#frame) this.#begin();
      if (this.#frame && this.#filled === this.#frame.length) {
        const whole = this.#frame;
        this.#frame = undefined;
        this.#filled = 0;
        onFrame(whole);
      }
    }
  }

  #begin(): void {
    this.#frame = new Uint8Array(length_bytes(this.#header));
    this.#frame.set(this.#header);
  }
}
