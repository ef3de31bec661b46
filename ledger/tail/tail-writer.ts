import { closeSync, ftruncateSync, openSync, writeSync } from 'node:fs';
import type { RequestRecord } from '../record.ts';
import { type TailPosition, tailFile } from './tail-files.ts';
import { type Gap, TailEncoder } from './tail-line.ts';

/** Lower: less to read after a kill (a second a hundred thousand records); higher: shared names are repeated less. */
const file_bytes_max = 16 * 1024 * 1024;

/** As much as the lines of a gateway under load take. */
const buffer_bytes = 64 * 1024;

/**
 * Appends records to the tail of a ledger: one write to a file, with which they are the kernel's and outlive this
 * process. A file that has grown large is followed by another.
 */
export class TailWriter {
  readonly #ledger: string;
  #file: number;
  #bytes = 0;
  /** Open from the first record of a file on. */
  #fd: number | undefined;
  #encoder = new TailEncoder();
  #buffer = Buffer.allocUnsafeSlow(buffer_bytes);

  #end: TailPosition;

  /**
   * @param file number of the first file, which must not be there
   * @param end of what a writer before this one left
   */
  constructor(ledger: string, file: number, end: TailPosition = { file: 0, bytes: 0 }) {
    this.#ledger = ledger;
    this.#file = file;
    this.#end = end;
  }

  /** Up to where there are records. */
  get end(): TailPosition {
    return this.#end;
  }

  /** All of them, or none. @throws the system's error where they cannot be written */
  append(records: readonly RequestRecord[], gap?: Gap): void {
    if (this.#bytes >= file_bytes_max) this.#goOn();
    this.#fd ??= openSync(tailFile(this.#ledger, this.#file), 'a', 0o600);
    const line = this.#encoder.encode(records, gap);
    // A character takes up to three bytes. The same buffer each time: a new one is more work for the collector.
    if (this.#buffer.length < 3 * line.length) this.#buffer = Buffer.allocUnsafeSlow(6 * line.length);
    const bytes = this.#buffer.write(line);
    try {
      for (let written = 0; written < bytes; )
        written += writeSync(this.#fd, this.#buffer, written, bytes - written);
      this.#bytes += bytes;
      this.#end = { file: this.#file, bytes: this.#bytes };
    } catch (error) {
      this.#takeBack();
      throw error;
    }
  }

  close(): void {
    if (this.#fd !== undefined) closeSync(this.#fd);
    this.#fd = undefined;
  }

  /** What was written of a line goes; where that cannot be, nothing may follow it in this file. */
  #takeBack(): void {
    this.#encoder.takeBack();
    try {
      ftruncateSync(this.#fd!, this.#bytes);
    } catch {
      this.#goOn();
    }
  }

  #goOn(): void {
    this.close();
    this.#file++;
    this.#bytes = 0;
    this.#encoder = new TailEncoder();
  }
}
