/** Little-endian numbers one after the other, in memory that grows. */
export class ByteWriter {
  #bytes = new Uint8Array(1024);
  #view = new DataView(this.#bytes.buffer);
  #length = 0;

  get bytes(): Uint8Array<ArrayBuffer> {
    return this.#bytes.subarray(0, this.#length);
  }

  u8(value: number): void {
    const at = this.#room(1);
    this.#view.setUint8(at, value);
  }

  u32(value: number): void {
    const at = this.#room(4);
    this.#view.setUint32(at, value, true);
  }

  i32(value: number): void {
    const at = this.#room(4);
    this.#view.setInt32(at, value, true);
  }

  f64(value: number): void {
    const at = this.#room(8);
    this.#view.setFloat64(at, value, true);
  }

  text(value: string): void {
    const bytes = Buffer.from(value);
    this.u32(bytes.length);
    const at = this.#room(bytes.length);
    this.#bytes.set(bytes, at);
  }

  /** There is room from here on: the memory may be another one than before. */
  #room(bytes: number): number {
    const at = this.#length;
    this.#length += bytes;
    if (this.#length > this.#bytes.length) {
      const larger = new Uint8Array(2 * this.#length);
      larger.set(this.#bytes);
      this.#bytes = larger;
      this.#view = new DataView(larger.buffer);
    }
    return at;
  }
}
