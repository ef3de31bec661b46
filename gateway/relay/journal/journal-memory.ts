/**
 * Bytes that the journals of all streams of a gateway may hold together. Lower: less memory at risk; higher: more
 * long streams survive the loss of their replica at the same time. 64 MiB are 16 million tokens of native replicas.
 */
const journal_bytes_max = 64 * 1024 * 1024;

/** Counts what journals hold. A stream that finds nothing left goes on, but cannot be continued elsewhere. */
export class JournalMemory {
  #left: number;

  constructor(bytes: number = journal_bytes_max) {
    this.#left = bytes;
  }

  /** Whether so many bytes more may be held; they count until `give`. */
  take(bytes: number): boolean {
    if (bytes > this.#left) return false;
    this.#left -= bytes;
    return true;
  }

  give(bytes: number): void {
    this.#left += bytes;
  }

  get left(): number {
    return this.#left;
  }
}
