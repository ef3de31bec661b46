/** Lower: less memory for each reader that pauses; higher: fewer pieces. */
const block_bytes = 4 * 1024;

/**
 * Bytes that wait for their reader, copied together: whoever sends them one by one makes them take no more than twice
 * their size.
 */
export class UnreadBytes {
  #blocks: { bytes: Buffer; used: number }[] = [];
  #length = 0;

  get length(): number {
    return this.#length;
  }

  /** @param bytes copied */
  add(bytes: Buffer): void {
    let last = this.#blocks.at(-1);
    if (!last || last.bytes.length - last.used < bytes.length) {
      last = { bytes: Buffer.allocUnsafe(Math.max(block_bytes, bytes.length)), used: 0 };
      this.#blocks.push(last);
    }
    last.bytes.set(bytes, last.used);
    last.used += bytes.length;
    this.#length += bytes.length;
  }

  /** Takes the first of them out; there must be some. */
  take(): Buffer {
    const { bytes, used } = this.#blocks.shift()!;
    this.#length -= used;
    return bytes.subarray(0, used);
  }

  clear(): void {
    this.#blocks = [];
    this.#length = 0;
  }
}
