const LF = 10;
const CR = 13;
const empty = Buffer.alloc(0);
const lineEnd = Buffer.from('\n');
/** A blank line may begin with so many bytes that came before. */
const last_bytes = 2;

/** Called with each complete event: bytes [start, end) of `bytes`, its blank line included. */
export type OnEvent = (bytes: Buffer, start: number, end: number) => void;

/**
 * Finds the events of a stream of server-sent events (WHATWG HTML §9.2.6; lines end in LF or CRLF) without
 * decoding them. What is not yet a whole event is kept for the next chunk.
 */
export class EventSplitter {
  readonly #onEvent: OnEvent;
  readonly #bytes_max: number;
  /** The beginning of an event that has not ended, and room for more of it. */
  #rest: Buffer = empty;
  #length = 0;
  /** Bytes of it whose line ends were seen. */
  #scanned = 0;
  /** Its last bytes, behind the end of the line before it. */
  #last = lineEnd;

  constructor(onEvent: OnEvent, bytes_max: number) {
    this.#onEvent = onEvent;
    this.#bytes_max = bytes_max;
  }

  /** The beginning of an event that has not ended. */
  get rest(): Buffer {
    return this.#rest.subarray(0, this.#length);
  }

  /**
   * Returns the buffer that was looked at and the offset up to which it consists of whole events; false where
   * an event is larger than allowed.
   */
  push(chunk: Buffer): { bytes: Buffer; whole: number } | false {
    if (this.#length === 0) return this.#look(chunk);
    const seen = Buffer.concat([this.#last, chunk]);
    this.#add(chunk);
    // A large event in many small pieces is looked at once, when it is whole.
    if (seen.includes('\n\n') || seen.includes('\n\r\n')) return this.#look(this.rest);
    this.#last = seen.subarray(-last_bytes);
    return this.#length > this.#bytes_max ? false : { bytes: empty, whole: 0 };
  }

  #add(chunk: Buffer): void {
    const length = this.#length + chunk.length;
    if (length > this.#rest.length) {
      const larger = Buffer.allocUnsafe(Math.max(2 * this.#length, length));
      this.#rest.copy(larger, 0, 0, this.#length);
      this.#rest = larger;
    }
    chunk.copy(this.#rest, this.#length);
    this.#length = length;
  }

  #look(bytes: Buffer): { bytes: Buffer; whole: number } | false {
    let line = this.#scanned;
    let start = 0;
    for (;;) {
      const lf = bytes.indexOf(LF, line);
      if (lf === -1) break;
      const end = lf > line && bytes[lf - 1] === CR ? lf - 1 : lf;
      if (end === line) {
        this.#onEvent(bytes, start, lf + 1);
        start = lf + 1;
      }
      line = lf + 1;
    }
    // What it has no room in is left alone: who was given events may still hold its bytes.
    this.#rest = start === bytes.length ? empty : bytes.subarray(start);
    this.#length = this.#rest.length;
    this.#scanned = line - start;
    this.#last =
      this.#length === 0
        ? lineEnd
        : Buffer.concat([lineEnd, this.#rest.subarray(-last_bytes)]).subarray(-last_bytes);
    return this.#length > this.#bytes_max ? false : { bytes, whole: start };
  }
}
