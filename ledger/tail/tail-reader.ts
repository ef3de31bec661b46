import { closeSync, fstatSync, openSync, readSync } from 'node:fs';
import { type DecodedLine, TailDecoder } from './tail-line.ts';

const chunk_bytes = 1024 * 1024;
const newline = 0x0a;

/** A line, and where in its file it ends; without the line where it is not as it was written. */
export interface ReadLine {
  line: DecodedLine | undefined;
  end: number;
}

/** Reads a file of the tail by line, while it grows. What is behind the last end of a line was never acknowledged. */
export class TailReader {
  readonly #fd: number;
  readonly #from_bytes: number;
  readonly #decoder = new TailDecoder();
  #bytes = 0;

  /** @param from_bytes end of the last line that is not wanted */
  constructor(path: string, from_bytes = 0) {
    this.#fd = openSync(path, 'r');
    this.#from_bytes = from_bytes;
  }

  /** Lines that came since, about as many as are asked for in bytes; none at the end. */
  read(bytes = chunk_bytes): ReadLine[] {
    const chunk = this.#chunk(Math.min(bytes, fstatSync(this.#fd).size - this.#bytes));
    const end = chunk.lastIndexOf(newline) + 1;
    if (end === 0) return chunk.length < bytes ? [] : this.read(2 * bytes);
    const lines: ReadLine[] = [];
    for (let from = 0; from < end; ) {
      const to = chunk.indexOf(newline, from);
      const line = this.#lineOf(chunk.toString('utf8', from, to), this.#bytes + to + 1);
      if (line) lines.push(line);
      from = to + 1;
    }
    this.#bytes += end;
    return lines.length > 0 ? lines : this.read(bytes);
  }

  close(): void {
    closeSync(this.#fd);
  }

  #chunk(bytes: number): Buffer {
    const chunk = Buffer.allocUnsafe(Math.max(bytes, 0));
    let read = 0;
    while (read < chunk.length) {
      const more = readSync(this.#fd, chunk, read, chunk.length - read, this.#bytes + read);
      if (more === 0) break;
      read += more;
    }
    return chunk.subarray(0, read);
  }

  #lineOf(text: string, end: number): ReadLine | undefined {
    const isWanted = end > this.#from_bytes;
    try {
      if (isWanted) return { line: this.#decoder.decode(text), end };
      this.#decoder.skip(text);
    } catch (error) {
      if (!(error instanceof SyntaxError)) throw error;
      // A page of it that never came to the disk, after a loss of power.
      if (isWanted) return { line: undefined, end };
    }
    return undefined;
  }
}
