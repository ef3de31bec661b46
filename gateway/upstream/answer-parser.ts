/**
 * An incremental parser of HTTP/1.1 answers (RFC 9112), for connections to sessions only: the peer has proved
 * its key, and what it may send is narrow. It is strict: what is ambiguous is an error that ends the connection.
 * It exists because a general client costs as much for each request as everything else the gateway does.
 */

export interface AnswerHead {
  status: number;
  /** Names in lower case, each followed by its value. */
  fields: string[];
}

export interface AnswerEvents {
  onHead(head: AnswerHead): void;
  /** Bytes of the body, without their framing; only valid during the call where they are kept by reference. */
  onBody(bytes: Buffer): void;
  /** The answer is whole; `reusable` where another request may follow on this connection. */
  onEnd(reusable: boolean): void;
}

/** Bounds of one answer's head and of a chunk's size line with its extensions. */
const headBytes = 64 * 1024;
const lineBytes = 4096;
const CR = 13;
const LF = 10;
const headEnd = Buffer.from('\r\n\r\n');
const empty = Buffer.alloc(0);

type State = 'head' | 'length' | 'chunk-size' | 'chunk-data' | 'chunk-end' | 'trailer' | 'close';

export class AnswerParser {
  readonly #events: AnswerEvents;
  #state: State = 'head';
  /** Bytes that are not yet a whole head or line. */
  #rest: Buffer = empty;
  /** Bytes of the body, or of the chunk, still to come. */
  #left = 0;
  #keepAlive = true;
  /** Whether an answer is expected; bytes that come unasked end the connection. */
  #expecting = false;
  /** Seconds an idle connection may live, as the peer said last. */
  idle_s: number | undefined;

  constructor(events: AnswerEvents) {
    this.#events = events;
  }

  /** A request has been sent: one answer will come. */
  expect(): void {
    this.#expecting = true;
  }

  /** Takes bytes of the connection. Throws where they are no answer. */
  push(chunk: Buffer): void {
    let bytes = chunk;
    if (this.#rest.length > 0) {
      bytes = Buffer.concat([this.#rest, chunk]);
      this.#rest = empty;
    }
    let at = 0;
    while (at < bytes.length) {
      if (!this.#expecting) throw new Error('bytes came that no request asked for');
      const next = this.#step(bytes, at);
      if (next === at) {
        this.#rest = at === 0 ? bytes : bytes.subarray(at);
        return;
      }
      at = next;
    }
  }

  /** The connection ended. Throws where an answer was not complete. */
  end(): void {
    if (!this.#expecting) return;
    if (this.#state !== 'close') throw new Error('the connection ended before the answer did');
    this.#finish(false);
  }

  /** Works on what is at `at`; returns the offset behind it, or `at` where more bytes are needed. */
  #step(bytes: Buffer, at: number): number {
    switch (this.#state) {
      case 'head':
        return this.#head(bytes, at);
      case 'length':
      case 'chunk-data': {
        const end = Math.min(bytes.length, at + this.#left);
        this.#left -= end - at;
        const last = this.#left === 0;
        const inLength = this.#state === 'length';
        if (last && !inLength) this.#state = 'chunk-end';
        this.#events.onBody(at === 0 && end === bytes.length ? bytes : bytes.subarray(at, end));
        if (last && inLength) this.#finish(this.#keepAlive);
        return end;
      }
      case 'chunk-size':
        return this.#chunkSize(bytes, at);
      case 'chunk-end':
        if (bytes.length - at < 2) return at;
        if (bytes[at] !== CR || bytes[at + 1] !== LF) throw new Error('a chunk does not end where it should');
        this.#state = 'chunk-size';
        return at + 2;
      case 'trailer':
        return this.#trailer(bytes, at);
      case 'close':
        this.#events.onBody(at === 0 ? bytes : bytes.subarray(at));
        return bytes.length;
    }
  }

  #head(bytes: Buffer, at: number): number {
    const end = bytes.indexOf(headEnd, at);
    if (end === -1) {
      if (bytes.length - at > headBytes) throw new Error('the head of the answer is too large');
      return at;
    }
    const lines = bytes.toString('latin1', at, end).split('\r\n');
    const status = statusOf(lines[0]!);
    const fields: string[] = [];
    let length: number | undefined;
    let chunked = false;
    this.#keepAlive = lines[0]!.startsWith('HTTP/1.1');
    for (let index = 1; index < lines.length; index++) {
      const line = lines[index]!;
      const colon = line.indexOf(':');
      if (colon <= 0 || line.charCodeAt(0) <= 32 || line.charCodeAt(colon - 1) <= 32) {
        throw new Error('a field of the answer is malformed');
      }
      const name = line.slice(0, colon).toLowerCase();
      const value = line.slice(colon + 1).trim();
      fields.push(name, value);
      if (name === 'content-length') {
        if (!/^\d{1,15}$/.test(value) || (length !== undefined && length !== Number(value))) {
          throw new Error('the answer has a wrong length');
        }
        length = Number(value);
      } else if (name === 'transfer-encoding') {
        if (value.toLowerCase() !== 'chunked') throw new Error(`the answer has the unknown coding ${value}`);
        chunked = true;
      } else if (name === 'connection') {
        if (value.toLowerCase().includes('close')) this.#keepAlive = false;
      } else if (name === 'keep-alive') {
        const timeout = /timeout=(\d{1,6})/.exec(value);
        if (timeout) this.idle_s = Number(timeout[1]);
      }
    }
    const next = end + headEnd.length;
    if (status < 200) {
      if (status === 101) throw new Error('the answer changes the protocol, which nobody asked for');
      return next;
    }
    // Both at once is how requests and answers are smuggled past proxies (RFC 9112 §6.3).
    if (chunked && length !== undefined) throw new Error('the answer has both a length and chunks');
    this.#left = length ?? 0;
    if (status === 204 || status === 304) this.#left = length = 0;
    this.#state = chunked ? 'chunk-size' : length === undefined ? 'close' : 'length';
    this.#events.onHead({ status, fields });
    if (this.#state === 'length' && this.#left === 0) this.#finish(this.#keepAlive);
    return next;
  }

  #chunkSize(bytes: Buffer, at: number): number {
    const end = bytes.indexOf(LF, at);
    if (end === -1) {
      if (bytes.length - at > lineBytes) throw new Error('the size line of a chunk is too long');
      return at;
    }
    let size = 0;
    let offset = at;
    for (; offset < end; offset++) {
      const digit = hexDigit(bytes[offset]!);
      if (digit === -1) break;
      size = size * 16 + digit;
    }
    const after = bytes[offset];
    // A chunk extension may follow the size; nothing else may.
    if (offset === at || offset - at > 12 || (after !== CR && after !== 59) || bytes[end - 1] !== CR) {
      throw new Error('a chunk has a malformed size');
    }
    this.#left = size;
    this.#state = size === 0 ? 'trailer' : 'chunk-data';
    return end + 1;
  }

  /** Trailer fields are read over; an empty line ends the answer. */
  #trailer(bytes: Buffer, at: number): number {
    const end = bytes.indexOf(LF, at);
    if (end === -1) {
      if (bytes.length - at > lineBytes) throw new Error('a trailer field is too long');
      return at;
    }
    if (end - at === 1 && bytes[at] === CR) this.#finish(this.#keepAlive);
    return end + 1;
  }

  #finish(reusable: boolean): void {
    this.#state = 'head';
    this.#expecting = false;
    this.#events.onEnd(reusable);
  }
}

function statusOf(line: string): number {
  const status = Number(line.slice(9, 12));
  if (!line.startsWith('HTTP/1.') || line.charCodeAt(8) !== 32 || !(status >= 100 && status <= 599)) {
    throw new Error('what came is no HTTP/1.1 answer');
  }
  return status;
}

function hexDigit(byte: number): number {
  if (byte >= 48 && byte <= 57) return byte - 48;
  const lower = byte | 32;
  return lower >= 97 && lower <= 102 ? lower - 87 : -1;
}
