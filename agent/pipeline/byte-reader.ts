import { damaged } from './frame.ts';

/** Reads what a `ByteWriter` wrote. What goes beyond the end is E_STAGE_FRAME. */
export class ByteReader {
  readonly #bytes: Uint8Array;
  readonly #view: DataView;
  #at = 0;

  constructor(bytes: Uint8Array) {
    this.#bytes = bytes;
    this.#view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  }

  get ended(): boolean {
    return this.#at === this.#bytes.length;
  }

  u8(): number {
    return this.#view.getUint8(this.#take(1));
  }

  u32(): number {
    return this.#view.getUint32(this.#take(4), true);
  }

  i32(): number {
    return this.#view.getInt32(this.#take(4), true);
  }

  f64(): number {
    return this.#view.getFloat64(this.#take(8), true);
  }

  text(): string {
    const bytes = this.u32();
    const at = this.#take(bytes);
    return Buffer.from(this.#bytes.buffer, this.#bytes.byteOffset + at, bytes).toString();
  }

  /** So many items follow, of at least so many bytes each. */
  count(item_bytes_min: number): number {
    const count = this.u32();
    if (count * item_bytes_min > this.#bytes.length - this.#at) throw damaged('it says more than it holds');
    return count;
  }

  #take(bytes: number): number {
    const at = this.#at;
    if (bytes > this.#bytes.length - at) throw damaged('it ends before what it says');
    this.#at += bytes;
    return at;
  }
}
