const LF = 10;
const CR = 13;
const empty = Buffer.alloc(0);

/** Called with each complete event: bytes [start, end) of `bytes`, its blank line included. */
export type OnEvent = (bytes: Buffer, start: number, end: number) => void;

/**
 * Finds the events of a stream of server-sent events (WHATWG HTML §9.2.6; lines end in LF or CRLF) without
 * decoding them. What is not yet a whole event is kept for the next chunk.
 */
export class EventSplitter {
  readonly #onEvent: OnEvent;
  readonly #bytes_max: number;
  #rest: Buffer = empty;
  /** Bytes of `#rest` whose line ends were seen. */
  #scanned = 0;

  constructor(onEvent: OnEvent, bytes_max: number) {
    this.#onEvent = onEvent;
    this.#bytes_max = bytes_max;
  }

  /** The beginning of an event that has not ended. */
  get rest(): Buffer {
    return this.#rest;
  }

  /**
   * Returns the buffer that was looked at and the offset up to which it consists of whole events; false where
   * an event is larger than allowed.
   */
  push(chunk: Buffer): { bytes: Buffer; whole: number } | false {
    const bytes = this.#rest.length === 0 ? chunk : Buffer.concat([this.#rest, chunk]);
    let line = this.#scanned;
    let start = 0;
    for (;;) {
      const lf = bytes.indexOf(LF, line);
      if (lf === -1) break;
      const lineEnd = lf > line && bytes[lf - 1] === CR ? lf - 1 : lf;
      if (lineEnd === line) {
        this.#onEvent(bytes, start, lf + 1);
        start = lf + 1;
      }
      line = lf + 1;
    }
    this.#rest = start === bytes.length ? empty : bytes.subarray(start);
    this.#scanned = line - start;
    return this.#rest.length > this.#bytes_max ? false : { bytes, whole: start };
  }
}
