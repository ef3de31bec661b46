import type { RequestRecord } from './record.ts';
import { TailDecoder, TailEncoder } from './tail/tail-line.ts';

/** Lower: less memory for names that are not used any more; higher: names are repeated less. */
const names_bytes_max = 16 * 1024 * 1024;
const again = '{"again":true}';

/**
 * Records as lines for another process, in the form that the ledger's tail has: what they share is named once. Whoever
 * reads them reads every line, from the first on.
 */
export class RecordEncoder {
  #encoder = new TailEncoder();
  #bytes = 0;

  /** One line, or two where the names begin anew, with their ends. */
  encode(records: readonly RequestRecord[]): string {
    let before = '';
    if (this.#bytes >= names_bytes_max) {
      this.#encoder = new TailEncoder();
      this.#bytes = 0;
      before = `${again}\n`;
    }
    const line = this.#encoder.encode(records);
    this.#bytes += line.length;
    return before + line;
  }
}

/** Reads what a `RecordEncoder` wrote. */
export class RecordDecoder {
  #decoder = new TailDecoder();

  /** @returns undefined for a line that has no records. @throws SyntaxError where it is not as it was written */
  decode(line: string): RequestRecord[] | undefined {
    if (line !== again) return this.#decoder.decode(line).records;
    this.#decoder = new TailDecoder();
    return undefined;
  }
}
