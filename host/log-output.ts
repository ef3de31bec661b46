import { write, writeSync } from 'node:fs';
import { systemMessage } from '../spec/errors/system-error.ts';

/** Lines kept while they cannot be written, beside those that the last write was given. */
const backlog_lines = 1000;
/** Pause after a failed write, ms. */
const retry_ms = 1000;

/**
 * Where a process that serves writes the lines of its log: a descriptor, most often of a file on a shared filesystem. A
 * full disk or quota costs lines, never the process: they are kept for a while and written when there is room again.
 */
export class LogOutput {
  readonly #descriptor: number;
  #backlog: string[] = [];
  #lost = 0;
  #reason: string | undefined;
  /** What the last write was given and the file has not: it may begin within a line, so nothing goes before it. */
  #taken: Buffer = Buffer.alloc(0);
  #writing = false;
  #retry: NodeJS.Timeout | undefined;

  /**
   * @param descriptor stays open, 1 for what the process was started with; what is left when it ends is tried once more
   */
  constructor(descriptor: number) {
    this.#descriptor = descriptor;
    process.once('exit', () => this.#flushSync());
  }

  /** @param line with its end */
  write(line: string): void {
    this.#backlog.push(line);
    if (this.#backlog.length > backlog_lines) {
      this.#backlog.shift();
      this.#lost++;
    }
    if (!this.#writing && !this.#retry) this.#flush();
  }

  #flush(): void {
    if (this.#taken.length === 0) this.#taken = this.#take();
    if (this.#taken.length === 0) return;
    this.#writing = true;
    write(this.#descriptor, this.#taken, (error, written) => {
      this.#writing = false;
      if (error) {
        this.#failed(error);
        return;
      }
      this.#taken = this.#taken.subarray(written);
      this.#flush();
    });
  }

  #failed(error: unknown): void {
    this.#reason = systemMessage(error);
    this.#retry = setTimeout(() => {
      this.#retry = undefined;
      this.#flush();
    }, retry_ms);
    this.#retry.unref();
  }

  /** All that waits, with a word about what could not wait. */
  #take(): Buffer {
    const notice =
      this.#lost > 0
        ? `${JSON.stringify({ level: 40, msg: `${this.#lost} lines were lost: ${this.#reason}` })}\n`
        : '';
    const text = notice + this.#backlog.join('');
    this.#backlog = [];
    this.#lost = 0;
    return Buffer.from(text);
  }

  #flushSync(): void {
    try {
      const bytes = Buffer.concat([this.#taken, this.#take()]);
      for (let offset = 0; offset < bytes.length; ) offset += writeSync(this.#descriptor, bytes, offset);
    } catch {
      // Nobody is left to be told.
    }
  }
}
