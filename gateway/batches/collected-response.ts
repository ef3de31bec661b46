import { EventEmitter } from 'node:events';
import type { TranslationClient } from '../dialects/translated-response.ts';

/** A request that no connection brings. */
export interface InnerRequest {
  body: Buffer;
  request_id: string;
  /** Ends it before its answer. */
  signal: AbortSignal;
}

export interface CollectedAnswer {
  status: number;
  /** Names in lower case. */
  headers: ReadonlyMap<string, string>;
  body: Buffer;
}

/** Where the answer of a request goes that no connection brought. */
export class CollectedResponse extends EventEmitter<{ close: []; drain: [] }> implements TranslationClient {
  /** Undefined where it broke off. */
  readonly answer: Promise<CollectedAnswer | undefined>;
  #resolve!: (answer: CollectedAnswer | undefined) => void;
  headersSent = false;
  destroyed = false;
  /** All of it is taken at once. */
  readonly writableNeedDrain = false;
  readonly writableLength = 0;
  #status = 0;
  readonly #headers = new Map<string, string>();
  readonly #chunks: Buffer[] = [];

  constructor() {
    super();
    this.answer = new Promise((resolve) => {
      this.#resolve = resolve;
    });
  }

  setHeader(name: string, value: string): void {
    this.#headers.set(name.toLowerCase(), value);
  }

  writeHead(status: number, pairs: readonly string[]): void {
    this.headersSent = true;
    this.#status = status;
    for (let at = 0; at + 1 < pairs.length; at += 2) this.setHeader(pairs[at]!, pairs[at + 1]!);
  }

  write(bytes: Buffer | string): boolean {
    // The relay's buffers are its own again after the call.
    this.#chunks.push(Buffer.from(bytes as string));
    return true;
  }

  end(bytes?: Buffer | string, encoding?: BufferEncoding): void {
    if (bytes !== undefined)
      this.#chunks.push(typeof bytes === 'string' ? Buffer.from(bytes, encoding) : Buffer.from(bytes));
    this.#resolve({ status: this.#status, headers: this.#headers, body: Buffer.concat(this.#chunks) });
  }

  destroy(): void {
    if (this.destroyed) return;
    this.destroyed = true;
    this.#resolve(undefined);
    this.emit('close');
  }
}
