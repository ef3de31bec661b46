import { closeSync, constants, fstatSync, openSync, readSync, statSync } from 'node:fs';
import { noteworthyLines } from '../adapters/first-cause.ts';
import { isAccessLine } from '../adapters/log-line.ts';

/** Python's tracebacks and NCCL's stack frames are long, and the first line is the one that counts. */
const tail_bytes = 128 * 1024;
const tail_lines = 400;
/** An engine that served for weeks may have ended with pages of its log of requests: so much is looked through. */
const searched_bytes = 4 * 1024 * 1024;
/** Of what it wrote while it started, where the first cause may stand far above the end. */
const head_bytes = 1024 * 1024;
/** Lines of it that matter. Higher: causes behind more noise are found. */
const head_lines = 400;
const line_characters_max = 500;

/** What one start of a process writes to a log file, in which others may have written before. */
export class ChildLog {
  readonly #path: string;
  /** Where this start begins. */
  readonly #offset: number;
  readonly #secrets: readonly string[];

  private constructor(path: string, offset: number, secrets: readonly string[]) {
    this.#path = path;
    this.#offset = offset;
    this.#secrets = secrets;
  }

  /** @returns a descriptor to write to, or why there is none: the output is then lost */
  static open(
    path: string,
    secrets: readonly string[] = [],
  ): { log: ChildLog; descriptor?: number; error?: NodeJS.ErrnoException } {
    try {
      const descriptor = openSync(path, constants.O_WRONLY | constants.O_CREAT | constants.O_APPEND, 0o600);
      return { log: new ChildLog(path, fstatSync(descriptor).size, secrets), descriptor };
    } catch (error) {
      return { log: new ChildLog(path, 0, secrets), error: error as NodeJS.ErrnoException };
    }
  }

  /** Bytes written so far; 0 where the file cannot be read. */
  get bytes(): number {
    try {
      return Math.max(0, statSync(this.#path).size - this.#offset);
    } catch {
      return 0; // already reported when it was opened for writing
    }
  }

  /** The end of what was written so far, oldest line first, without the log of requests. */
  tail(): string[] {
    const near = this.lines(this.bytes - tail_bytes, tail_bytes).filter((line) => !isAccessLine(line));
    // Where the log of requests was all there is near the end, what stands above it.
    const whole =
      near.length > 0
        ? near
        : this.lines(this.bytes - searched_bytes, searched_bytes).filter((line) => !isAccessLine(line));
    return whole.slice(-tail_lines);
  }

  /** Of all that was written the lines that may be a cause: the first of them, and the end. */
  notable(): string[] {
    const tail = this.tail();
    const head = noteworthyLines(this.lines(0, head_bytes), head_lines);
    const known = new Set(tail);
    return [...head.filter((line) => !known.has(line)), ...tail];
  }

  /** The lines of `length` bytes from `start` on; none where the file cannot be read. */
  lines(start: number, length: number): string[] {
    let text = this.read(Math.max(0, start), length);
    for (const secret of this.#secrets) text = text.replaceAll(secret, '[key]');
    return text
      .split('\n')
      .map((line) => line.trimEnd().slice(0, line_characters_max))
      .filter((line) => line !== '');
  }

  /** Text as it stands, secrets included; empty where the file cannot be read. */
  read(start: number, length: number): string {
    return this.readBytes(start, length).toString('utf8');
  }

  /** The same, before it is text. */
  readBytes(start: number, length: number): Buffer {
    let descriptor: number;
    try {
      descriptor = openSync(this.#path, constants.O_RDONLY);
    } catch {
      return Buffer.alloc(0); // already reported when it was opened for writing
    }
    try {
      const buffer = Buffer.alloc(
        Math.max(0, Math.min(length, fstatSync(descriptor).size - this.#offset - start)),
      );
      const bytes = readSync(descriptor, buffer, 0, buffer.length, this.#offset + start);
      return buffer.subarray(0, bytes);
    } finally {
      closeSync(descriptor);
    }
  }
}
