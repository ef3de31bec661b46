export interface HttpAnswerHead {
  status: number;
  /** Names in lower case, each followed by its value. */
  fields: string[];
}

export interface AnswerEvents {
  onHead(head: HttpAnswerHead): void;
  /** Bytes of the body, without their framing: those that `push` was given. */
  onBody(bytes: Buffer): void;
  /**
   * The answer is whole; `reusable` where another request may follow on this connection. Nothing of a chunk of
   * bytes is ever parsed after this was called for it: what is behind an answer must not pass for the next one.
   * @param trailers names in lower case, each followed by its value
   */
  onEnd(reusable: boolean, trailers: readonly string[]): void;
}

/** What came is no answer, or not all of one: never what whoever takes it threw. */
export class MalformedAnswer extends Error {}

/** Bounds of one answer's head, of a chunk's size line with its extensions, and of all trailer fields together. */
const head_bytes_max = 64 * 1024;
const line_bytes_max = 4096;
const trailer_bytes_max = 16 * 1024;
/** Interim answers (RFC 9110 §15.2) before the real one. */
const interim_answers_max = 8;
/** RFC 9110 §5.6.2 and §5.5: names are tokens; values have no control characters but tabs. */
const token = /^[!#$%&'*+.^_`|~0-9A-Za-z-]+$/;
const forbidden = /[^\t\x20-\x7e\x80-\xff]/;
const statusLine = /^HTTP\/1\.([01]) ([1-5][0-9][0-9])(?: [\t\x20-\x7e\x80-\xff]*)?$/;
const chunkExtension = /^(?:[ \t]*;[\t\x20-\x7e\x80-\xff]*)?$/;
const CR = 13;
const LF = 10;
const headEnd = Buffer.from('\r\n\r\n');
const empty = Buffer.alloc(0);
const none: readonly string[] = [];

type State = 'head' | 'length' | 'until-end' | 'chunk-size' | 'chunk-data' | 'chunk-end' | 'trailer';

export interface AnswerParserOptions {
  /**
   * An answer that says neither its length nor that it comes in chunks ends with its connection (RFC 9112 §6.3), as
   * simple engines on the same host have it; absent: it is an error, for whoever is in between can end a connection.
   */
  may_end_with_connection?: boolean;
}

/**
 * An incremental parser of HTTP/1.1 answers (RFC 9112), of which two programs have need: the gateway for sessions, the
 * node agent for engines. Who answers is known there, and what he may send is narrow. It is strict: what is ambiguous
 * is an error that ends the connection. It exists because a general client costs as much for each request as everything
 * else the gateway does.
 */
export class HttpAnswerParser {
  readonly #events: AnswerEvents;
  readonly #may_end_with_connection: boolean;
  #state: State = 'head';
  /** Bytes that are not yet a whole head or line. */
  #rest: Buffer = empty;
  /** Bytes of the body, or of the chunk, still to come. */
  #left = 0;
  #keepAlive = true;
  /** Whether an answer is expected; bytes that come unasked end the connection. */
  #expecting = false;
  /** The request was HEAD: its answer has the head of another, and no body. */
  #bodiless = false;
  #interim = 0;
  #trailer_bytes = 0;
  #trailers: string[] | undefined;
  /** Seconds an idle connection may live, as the peer said last. */
  idle_s: number | undefined;

  constructor(events: AnswerEvents, options: AnswerParserOptions = {}) {
    this.#events = events;
    this.#may_end_with_connection = options.may_end_with_connection === true;
  }

  /** A request has been sent: one answer will come. */
  expect(method?: string): void {
    this.#expecting = true;
    this.#bodiless = method === 'HEAD';
  }

  /** Takes bytes of the connection, and keeps none of them. Throws where they are no answer, or more than one. */
  push(chunk: Buffer): void {
    let bytes = chunk;
    if (this.#rest.length > 0) {
      bytes = Buffer.concat([this.#rest, chunk]);
      this.#rest = empty;
    }
    let at = 0;
    while (at < bytes.length) {
      if (!this.#expecting) throw new MalformedAnswer('bytes came that no request asked for');
      const next = this.#step(bytes, at);
      if (!this.#expecting) {
        const surplus = next < bytes.length;
        const trailers = this.#trailers ?? none;
        this.#trailers = undefined;
        this.#events.onEnd(this.#keepAlive && !surplus, trailers);
        // The answer itself was whole; the connection is not to be trusted with another.
        if (surplus) throw new MalformedAnswer('bytes came behind the answer');
        return;
      }
      if (next === at) {
        // Whoever reads may fill the same buffer again.
        this.#rest = Buffer.from(bytes.subarray(at));
        return;
      }
      at = next;
    }
  }

  /** The connection ended. Throws where an answer was not complete. */
  end(): void {
    if (!this.#expecting) return;
    if (this.#state !== 'until-end') throw new MalformedAnswer('the connection ended before the answer did');
    this.#finish();
    this.#events.onEnd(false, none);
  }

  /**
   * Works on what is at `at`; returns the offset behind it, or `at` where more bytes are needed. Clears `#expecting` at
   * an answer's end.
   */
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
        if (last && inLength) this.#finish();
        return end;
      }
      case 'until-end':
        this.#events.onBody(at === 0 ? bytes : bytes.subarray(at));
        return bytes.length;
      case 'chunk-size':
        return this.#chunkSize(bytes, at);
      case 'chunk-end':
        if (bytes.length - at < 2) return at;
        if (bytes[at] !== CR || bytes[at + 1] !== LF)
          throw new MalformedAnswer('a chunk does not end where it should');
        this.#state = 'chunk-size';
        return at + 2;
      case 'trailer':
        return this.#trailer(bytes, at);
    }
  }

  #head(bytes: Buffer, at: number): number {
    const end = bytes.indexOf(headEnd, at);
    if ((end === -1 ? bytes.length : end) - at > head_bytes_max) {
      throw new MalformedAnswer('the head of the answer is too large');
    }
    if (end === -1) return at;
    const lines = bytes.toString('latin1', at, end).split('\r\n');
    const start = statusLine.exec(lines[0]!);
    if (!start) throw new MalformedAnswer('what came is no HTTP/1.1 answer');
    const modern = start[1] === '1';
    const status = Number(start[2]);
    const fields: string[] = [];
    let length: number | undefined;
    let chunked = false;
    this.#keepAlive = modern;
    for (let index = 1; index < lines.length; index++) {
      const [name, value] = fieldOf(lines[index]!);
      fields.push(name, value);
      if (name === 'content-length') {
        if (!/^\d{1,15}$/.test(value) || (length !== undefined && length !== Number(value))) {
          throw new MalformedAnswer('the answer has a wrong length');
        }
        length = Number(value);
      } else if (name === 'transfer-encoding') {
        if (value.toLowerCase() !== 'chunked' || chunked || !modern)
          throw new MalformedAnswer(`the answer has the unknown coding ${value}`);
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
      if (status === 101)
        throw new MalformedAnswer('the answer changes the protocol, which nobody asked for');
      if (chunked || length !== undefined) throw new MalformedAnswer('an interim answer has a body');
      if (++this.#interim > interim_answers_max)
        throw new MalformedAnswer('interim answers come without end');
      return next;
    }
    // Both at once is how requests and answers are smuggled past proxies (RFC 9112 §6.3).
    if (chunked && length !== undefined) throw new MalformedAnswer('the answer has both a length and chunks');
    const never = status === 204 || status === 304;
    if (never && chunked) throw new MalformedAnswer(`an answer with status ${status} has a body`);
    const bodiless = never || this.#bodiless;
    const open = !bodiless && !chunked && length === undefined;
    // Its end would be that of the connection, which anybody in between can bring about.
    if (open && !this.#may_end_with_connection)
      throw new MalformedAnswer('the answer does not say how long it is');
    this.#left = bodiless ? 0 : (length ?? 0);
    this.#state = open ? 'until-end' : chunked && !bodiless ? 'chunk-size' : 'length';
    this.#events.onHead({ status, fields });
    if (this.#state === 'length' && this.#left === 0) this.#finish();
    return next;
  }

  #chunkSize(bytes: Buffer, at: number): number {
    const end = bytes.indexOf(LF, at);
    if ((end === -1 ? bytes.length : end) - at > line_bytes_max) {
      throw new MalformedAnswer('the size line of a chunk is too long');
    }
    if (end === -1) return at;
    let size = 0;
    let offset = at;
    for (; offset < end; offset++) {
      const digit = hexDigit(bytes[offset]!);
      if (digit === -1) break;
      size = size * 16 + digit;
    }
    // A chunk extension may follow the size; nothing else may.
    const plain = offset === end - 1;
    if (
      offset === at ||
      offset - at > 12 ||
      bytes[end - 1] !== CR ||
      !(plain || chunkExtension.test(bytes.toString('latin1', offset, end - 1)))
    ) {
      throw new MalformedAnswer('a chunk has a malformed size');
    }
    this.#left = size;
    this.#state = size === 0 ? 'trailer' : 'chunk-data';
    return end + 1;
  }

  /** An empty line ends trailer fields and answer. */
  #trailer(bytes: Buffer, at: number): number {
    const end = bytes.indexOf(LF, at);
    const length = (end === -1 ? bytes.length : end + 1) - at;
    if (this.#trailer_bytes + length > trailer_bytes_max)
      throw new MalformedAnswer('the trailer of the answer is too large');
    if (end === -1) return at;
    this.#trailer_bytes += length;
    const line = bytes.toString('latin1', at, end);
    if (line === '\r') this.#finish();
    else if (!line.endsWith('\r')) throw new MalformedAnswer('a trailer field is malformed');
    else {
      this.#trailers ??= [];
      this.#trailers.push(...fieldOf(line.slice(0, -1)));
    }
    return end + 1;
  }

  #finish(): void {
    this.#state = 'head';
    this.#expecting = false;
    this.#interim = 0;
    this.#trailer_bytes = 0;
  }
}

type Field = readonly [name: string, value: string];

/** Lines that were read before: nearly all lines of an answer's head are those of the last one, of whatever replica. */
const knownFields = new Map<string, Field>();
const known_fields_max = 256;
const known_line_max = 128;

/** Name in lower case, and value without the white space around it. */
function fieldOf(line: string): Field {
  let field = knownFields.get(line);
  if (field === undefined) {
    field = readField(line);
    if (line.length <= known_line_max) {
      if (knownFields.size >= known_fields_max) knownFields.clear();
      knownFields.set(line, field);
    }
  }
  return field;
}

/** No regular expression for the white space: they are slow on hostile lines. */
function readField(line: string): Field {
  const colon = line.indexOf(':');
  const name = line.slice(0, Math.max(0, colon));
  if (!token.test(name) || forbidden.test(line))
    throw new MalformedAnswer('a field of the answer is malformed');
  let start = colon + 1;
  let end = line.length;
  while (start < end && isSpace(line.charCodeAt(start))) start++;
  while (end > start && isSpace(line.charCodeAt(end - 1))) end--;
  return [name.toLowerCase(), line.slice(start, end)];
}

function isSpace(code: number): boolean {
  return code === 32 || code === 9;
}

function hexDigit(byte: number): number {
  if (byte >= 48 && byte <= 57) return byte - 48;
  const lower = byte | 32;
  return lower >= 97 && lower <= 102 ? lower - 87 : -1;
}
