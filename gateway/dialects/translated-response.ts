import type { ErrorCode } from '../../spec/errors/registry.ts';
import type { OpenAiError } from '../../spec/wire.ts';
import type { ClientResponse } from '../relay/client-response.ts';
import { EventSplitter } from '../relay/sse-events.ts';
import { isMembers, type Members, partsOf } from './chat-form.ts';
import type { Dialect, DialectAnswer } from './dialect.ts';

/** Where a translated answer goes. */
export interface TranslationClient extends ClientResponse {
  /** Whether what was written waits. */
  readonly writableNeedDrain: boolean;
}

/** One event of a model, with all log-probabilities, is some ten thousand bytes. */
const event_bytes_max = 8 * 1024 * 1024;
/**
 * A whole answer is held until it can be told in the dialect. Lower: less memory for each; higher: more embeddings in
 * one answer.
 */
const held_bytes_max = 32 * 1024 * 1024;
const tooLarge: Members = {
  message: `the answer is larger than ${held_bytes_max >> 20} MiB, the most that is translated into this API. Ask for less of it at once, or over OpenAI's API`,
};

/** What the relay sends at last is held here until it is whole: then it is said in the dialect. */
type Form = 'stream' | 'whole' | 'refusal';

/** What came, where it is an object of JSON, and the same in the dialect, where it can be said there. */
interface Told {
  answer: Members | undefined;
  whole: string | undefined;
}

/**
 * The response of a client that speaks a dialect, as the relay sees it: it takes the answer of a chat, and what goes to
 * the client is that answer in the dialect. The relay knows of no dialect.
 */
export class TranslatedResponse implements ClientResponse {
  readonly #client: TranslationClient;
  readonly #dialect: Dialect;
  readonly #request_id: string;
  readonly #splitter: EventSplitter;
  /** From when the request is understood; before that it can only be refused. */
  #answer: DialectAnswer | undefined;
  #form: Form | undefined;
  #status = 0;
  readonly #pairs: string[] = [];
  readonly #held: Buffer[] = [];
  /** Bytes that the answer has in all, where that was said. */
  #length = Number.POSITIVE_INFINITY;
  #held_bytes = 0;
  /** Of an answer that comes whole: what it is, and in the dialect, where it can be told there. */
  #prepared: Told | undefined;
  #sent = false;
  /** What waits until the answer is kept. */
  #unsent_bytes = 0;
  /** Of a stream, for the client: written once a chunk. */
  #out = '';
  #begun = false;
  #failed = false;

  constructor(client: TranslationClient, dialect: Dialect, request_id: string) {
    this.#client = client;
    this.#dialect = dialect;
    this.#request_id = request_id;
    this.#splitter = new EventSplitter(
      (bytes, start, end) => this.#event(bytes, start, end),
      event_bytes_max,
    );
  }

  /** The request was understood: what comes now is told by this. */
  answerBy(answer: DialectAnswer): void {
    this.#answer = answer;
  }

  get headersSent(): boolean {
    return this.#form !== undefined;
  }

  get untold(): ErrorCode | undefined {
    const isUntold = this.#failed || (this.#prepared && this.#prepared.whole === undefined);
    return isUntold ? 'E_REPLICA_FAILED' : undefined;
  }

  prepare(rest: Buffer): void {
    if (this.#form === undefined || this.#form === 'whole')
      this.#prepared = this.#tell([...this.#held, rest], this.#held_bytes + rest.length, true);
  }

  get destroyed(): boolean {
    return this.#client.destroyed;
  }

  get socket(): object | null | undefined {
    return this.#client.socket;
  }

  get writableLength(): number {
    return this.#client.writableLength + this.#unsent_bytes;
  }

  setHeader(name: string, value: string): void {
    this.#client.setHeader(name, value);
  }

  writeHead(status: number, pairs: readonly string[]): void {
    this.#status = status;
    this.#form = status >= 400 ? 'refusal' : 'whole';
    for (let at = 0; at < pairs.length; at += 2) {
      const [name, value] = [pairs[at]!.toLowerCase(), pairs[at + 1]!];
      if (name === 'content-type') {
        if (value.startsWith('text/event-stream') && status < 400) this.#form = 'stream';
      } else if (name === 'content-length') this.#length = Number(value);
      else this.#pairs.push(name, value);
    }
    if (this.#form === 'stream')
      this.#client.writeHead(status, ['content-type', this.#answer!.stream_type, ...this.#pairs]);
  }

  write(chunk: Buffer | string): boolean {
    const bytes = typeof chunk === 'string' ? Buffer.from(chunk) : chunk;
    if (this.#form === 'stream') return this.#push(bytes);
    // The relay's buffers are its own again after the call.
    this.#hold(Buffer.from(bytes));
    return true;
  }

  end(chunk?: Buffer | string, encoding?: BufferEncoding): void {
    const bytes = typeof chunk === 'string' ? Buffer.from(chunk, encoding) : chunk;
    if (this.#form === 'stream') {
      if (bytes) this.#push(bytes);
      const ending = this.#failed ? '' : this.#answer!.end();
      this.#whenKept(ending.length, () => this.#client.end(ending));
      return;
    }
    if (bytes) this.#hold(bytes);
    this.#send();
    this.#whenKept(0, () => this.#client.end());
  }

  /** Whoever has an answer whole may ask for it in the next moment, and of another gateway. */
  #whenKept(bytes: number, send: () => void): void {
    const kept = this.#answer?.kept;
    if (!kept) {
      send();
      return;
    }
    this.#unsent_bytes += bytes;
    void kept.then(() => {
      this.#unsent_bytes -= bytes;
      if (!this.#client.destroyed) send();
    });
  }

  destroy(): void {
    this.#client.destroy();
  }

  on(event: 'close', listener: () => void): void {
    this.#client.on(event, listener);
  }

  once(event: 'drain' | 'close', listener: () => void): void {
    this.#client.once(event, listener);
  }

  off(event: 'close', listener: () => void): void {
    this.#client.off(event, listener);
  }

  /** What is all there goes at once, though its connection may be held open for a while. */
  #hold(bytes: Buffer): void {
    this.#held_bytes += bytes.length;
    if (this.#held_bytes > held_bytes_max) this.#held.length = 0;
    else this.#held.push(bytes);
    if (this.#held_bytes >= this.#length) this.#send();
  }

  #send(): void {
    if (this.#sent) return;
    this.#sent = true;
    const isWhole = this.#form === 'whole';
    // An error of the gateway may have come in its place meanwhile.
    const prepared = isWhole ? this.#prepared : undefined;
    const { answer, whole } = prepared ?? this.#tell(this.#held, this.#held_bytes, isWhole);
    const status = whole || this.#form === 'refusal' ? this.#status : 502;
    const refusal = (): Members => this.#dialect.refusal(errorOf(answer ?? {}), status, this.#request_id);
    const body = Buffer.from(whole ?? JSON.stringify(refusal()));
    const own = ['content-type', 'application/json', 'content-length', String(body.length)];
    this.#whenKept(body.length, () => {
      this.#client.writeHead(status, [...own, ...this.#pairs]);
      this.#client.write(body);
    });
  }

  #tell(pieces: readonly Buffer[], bytes: number, isWhole: boolean): Told {
    const answer = bytes > held_bytes_max ? tooLarge : objectIn(Buffer.concat(pieces).toString());
    const whole = answer && answer !== tooLarge && isWhole ? this.#told(answer) : undefined;
    return { answer, whole };
  }

  /** A whole answer in the dialect; undefined where it has not the form of one: engines say what they like. */
  #told(answer: Members): string | undefined {
    try {
      return JSON.stringify(this.#whole(answer));
    } catch {
      return undefined;
    }
  }

  #whole(answer: Members): Members {
    const told = this.#answer!;
    if (told.translate) return told.translate(answer);
    this.#begin(answer);
    for (const part of partsOf(answer)) told.take(part);
    told.end();
    return told.whole();
  }

  #push(bytes: Buffer): boolean {
    if (this.#splitter.push(bytes) === false)
      throw new Error(`an event of the stream is larger than ${event_bytes_max} bytes`);
    const text = this.#out;
    this.#out = '';
    return text === '' ? !this.#client.writableNeedDrain : this.#client.write(text);
  }

  #event(bytes: Buffer, start: number, end: number): void {
    const text = bytes.toString('utf8', start, end).trim();
    if (text.startsWith(':')) {
      this.#out += this.#answer!.comment?.(text.slice(1).trim()) ?? '';
      return;
    }
    const data = text.replace(/^data: ?/, '');
    if (data === '[DONE]' || this.#failed) return;
    const chunk = objectIn(data);
    if (!chunk || isMembers(chunk.error)) this.#fail(chunk ?? {});
    else this.#tellChunk(chunk);
  }

  #tellChunk(chunk: Members): void {
    try {
      const parts = partsOf(chunk);
      this.#out += this.#begin(chunk);
      for (const part of parts) this.#out += this.#answer!.take(part);
    } catch {
      // It has not the form of a chunk: engines say what they like.
      this.#fail({});
    }
  }

  #fail(said: Members): void {
    this.#failed = true;
    this.#out += this.#answer!.fail(errorOf(said));
  }

  #begin({ model, created }: Members): string {
    if (this.#begun) return '';
    this.#begun = true;
    const created_s = typeof created === 'number' ? created : Math.floor(Date.now() / 1000);
    return this.#answer!.begin({ model: String(model), created_s });
  }
}

/** Undefined for what is no object of JSON: no engine that speaks OpenAI's API answers so. */
function objectIn(text: string): Members | undefined {
  try {
    const value: unknown = JSON.parse(text);
    return isMembers(value) ? value : undefined;
  } catch {
    return undefined;
  }
}

function errorOf({ error, message }: Members): OpenAiError['error'] {
  const said = isMembers(error) ? error : {};
  const text = (value: unknown): string | null => (typeof value === 'string' ? value : null);
  return {
    message: text(said.message) ?? text(message) ?? 'the engine gave an answer that could not be read',
    type: text(said.type) ?? 'server_error',
    param: text(said.param),
    code: text(said.code) ?? (typeof said.code === 'number' ? String(said.code) : null),
  };
}
