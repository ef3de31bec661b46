import { HpcserveError } from '../../spec/errors/error.ts';

/**
 * Containers within each other. Lower: less memory at risk in engines; higher: stranger schemas pass. Python's own
 * limit is about as high.
 */
export const depth_max = 1000;
/** Characters of one number. Higher: numbers that no engine reads hold the event loop. */
const number_bytes_max = 1000;

const QUOTE = 34;
const MINUS = 45;
const ZERO = 48;
const NINE = 57;
const BACKSLASH = 92;
const OPEN_BRACE = 123;
const CLOSE_BRACE = 125;
const OPEN_BRACKET = 91;
const CLOSE_BRACKET = 93;
const COMMA = 44;
const COLON = 58;

/** What may come next. */
const aValue = 0;
const aValueOrEnd = 1;
const aKeyOrEnd = 2;
const aKey = 3;
const aColon = 4;
const behindValue = 5;
const inString = 6;
const theEnd = 7;
type State =
  | typeof aValue
  | typeof aValueOrEnd
  | typeof aKeyOrEnd
  | typeof aKey
  | typeof aColon
  | typeof behindValue
  | typeof inString
  | typeof theEnd;

const expected: Record<State, string> = {
  [aValue]: 'a value',
  [aValueOrEnd]: 'a value or ]',
  [aKeyOrEnd]: 'a name in quotes or }',
  [aKey]: 'a name in quotes',
  [aColon]: 'a colon',
  [behindValue]: 'a comma or the end of what is open',
  [inString]: 'the rest of a string',
  [theEnd]: 'nothing more',
};

const escapable = new Set(Buffer.from('"\\/bfnrt'));
const literals = ['true', 'false', 'null'].map((word) => Buffer.from(word));

/**
 * Reads a JSON text without making objects of it: who extends it is told where names and values lie. It takes and
 * refuses the same texts as `JSON.parse` does of `bytes.toString()`, but for bounds of depth and of numbers. Time is
 * linear in the bytes, memory in the depth, and it can stop after any number of bytes and go on later.
 */
export abstract class JsonScan {
  readonly bytes: Buffer;
  #at = 0;
  #state: State = aValue;
  /** Of each open container, whether it is an object. */
  readonly #objects: boolean[] = [];
  /** Of the string that is being read. */
  #string_start = 0;
  #string_is_key = false;
  #string_escaped = false;

  constructor(bytes: Buffer) {
    this.bytes = bytes;
  }

  /** A name in an object; `depth` containers are open. Its quotes are not in [start, end). */
  protected abstract onName(depth: number, start: number, end: number, escaped: boolean): void;
  /** A container opens at `start`; `depth` others are open around it. */
  protected abstract onOpen(depth: number, start: number): void;
  /** A value [start, end) that is no container; `depth` containers are open around it. Only strings have escapes. */
  protected abstract onScalar(depth: number, start: number, end: number, escaped: boolean): void;
  /** A container ended before `end`; `depth` others are open around it. */
  protected abstract onClose(depth: number, end: number): void;

  /**
   * Reads on, about `bytes_max` bytes.
   * @returns whether the text is read whole
   * @throws E_REQUEST_JSON where it is no JSON, and where
   */
  step(bytes_max: number): boolean {
    const { bytes } = this;
    const stop = Math.min(bytes.length, this.#at + bytes_max);
    let at = this.#at;
    if (this.#state === inString) at = this.#readString(at, stop);
    while (at < stop) {
      const byte = bytes[at]!;
      if (byte === 32 || byte === 10 || byte === 13 || byte === 9) at++;
      else at = this.#read(byte, at, stop);
    }
    this.#at = at;
    if (at < bytes.length) return false;
    if (this.#state !== theEnd) throw this.#wrong(at, this.#state);
    return true;
  }

  /** Reads all that is left at once. */
  finish(): this {
    this.step(Number.POSITIVE_INFINITY);
    return this;
  }

  #read(byte: number, at: number, stop: number): number {
    switch (this.#state) {
      case aValueOrEnd:
        if (byte === CLOSE_BRACKET) return this.#close(at);
        return this.#readValue(byte, at, stop);
      case aValue:
        return this.#readValue(byte, at, stop);
      case aKeyOrEnd:
        if (byte === CLOSE_BRACE) return this.#close(at);
        return this.#readName(byte, at, stop);
      case aKey:
        return this.#readName(byte, at, stop);
      case aColon:
        if (byte !== COLON) throw this.#wrong(at, aColon);
        this.#state = aValue;
        return at + 1;
      case behindValue: {
        const object = this.#objects[this.#objects.length - 1];
        if (byte === COMMA) {
          this.#state = object ? aKey : aValue;
          return at + 1;
        }
        if (byte === (object ? CLOSE_BRACE : CLOSE_BRACKET)) return this.#close(at);
        throw this.#wrong(at, behindValue);
      }
      default:
        throw this.#wrong(at, this.#state);
    }
  }

  #readValue(byte: number, at: number, stop: number): number {
    if (byte === QUOTE) return this.#beginString(at, stop, false);
    const depth = this.#objects.length;
    if (byte === OPEN_BRACE || byte === OPEN_BRACKET) {
      if (depth === depth_max) throw this.#because(at, `nested deeper than ${depth_max} levels`);
      this.onOpen(depth, at);
      this.#objects.push(byte === OPEN_BRACE);
      this.#state = byte === OPEN_BRACE ? aKeyOrEnd : aValueOrEnd;
      return at + 1;
    }
    const end =
      byte === MINUS || (byte >= ZERO && byte <= NINE) ? this.#endOfNumber(at) : this.#endOfLiteral(at);
    this.onScalar(depth, at, end, false);
    this.#ended();
    return end;
  }

  #readName(byte: number, at: number, stop: number): number {
    if (byte !== QUOTE) throw this.#wrong(at, this.#state);
    return this.#beginString(at, stop, true);
  }

  #close(at: number): number {
    this.#objects.pop();
    this.onClose(this.#objects.length, at + 1);
    this.#ended();
    return at + 1;
  }

  #ended(): void {
    this.#state = this.#objects.length === 0 ? theEnd : behindValue;
  }

  #beginString(at: number, stop: number, isKey: boolean): number {
    this.#string_start = at;
    this.#string_is_key = isKey;
    this.#string_escaped = false;
    this.#state = inString;
    return this.#readString(at + 1, stop);
  }

  /** @returns behind the string, or behind what was read of it */
  #readString(from: number, stop: number): number {
    const { bytes } = this;
    let at = from;
    while (at < stop) {
      const byte = bytes[at]!;
      // Nearly all bytes are letters, and spaces.
      if (byte > BACKSLASH || (byte > QUOTE && byte < BACKSLASH) || byte === 32 || byte === 33) at++;
      else if (byte === BACKSLASH) at = this.#endOfEscape(at);
      else if (byte === QUOTE) {
        this.#endString(at + 1);
        return at + 1;
      } else throw this.#because(at, 'a control character in a string, where an escape (\\n) must stand');
    }
    return at;
  }

  #endString(end: number): void {
    const depth = this.#objects.length;
    const start = this.#string_start;
    if (this.#string_is_key) {
      this.onName(depth, start + 1, end - 1, this.#string_escaped);
      this.#state = aColon;
    } else {
      this.onScalar(depth, start, end, this.#string_escaped);
      this.#ended();
    }
  }

  #endOfEscape(at: number): number {
    this.#string_escaped = true;
    const byte = this.bytes[at + 1];
    if (byte !== undefined && escapable.has(byte)) return at + 2;
    const isUnicode = byte === 117 && /^[0-9a-fA-F]{4}$/.test(this.bytes.toString('latin1', at + 2, at + 6));
    if (!isUnicode) throw this.#because(at, 'an escape that JSON does not have');
    return at + 6;
  }

  #endOfNumber(start: number): number {
    const { bytes } = this;
    let at = bytes[start] === MINUS ? start + 1 : start;
    at = bytes[at] === ZERO ? at + 1 : this.#endOfDigits(at, start);
    if (bytes[at] === 46) at = this.#endOfDigits(at + 1, start);
    if (bytes[at] === 101 || bytes[at] === 69) {
      const sign = bytes[at + 1];
      at = this.#endOfDigits(sign === MINUS || sign === 43 ? at + 2 : at + 1, start);
    }
    return at;
  }

  /** At least one digit. */
  #endOfDigits(from: number, start: number): number {
    const { bytes } = this;
    let at = from;
    while (bytes[at]! >= ZERO && bytes[at]! <= NINE) {
      if (++at - start > number_bytes_max)
        throw this.#because(start, `a number of more than ${number_bytes_max} characters`);
    }
    if (at === from) throw this.#because(at, 'a digit is missing in a number');
    return at;
  }

  #endOfLiteral(at: number): number {
    const { bytes } = this;
    for (const word of literals) {
      const end = at + word.length;
      if (bytes[at] === word[0] && end <= bytes.length && bytes.compare(word, 0, word.length, at, end) === 0)
        return end;
    }
    throw this.#wrong(at, this.#state);
  }

  #wrong(at: number, state: State): HpcserveError {
    const found = at >= this.bytes.length ? 'it ends there' : `there is ${describeByte(this.bytes, at)}`;
    return this.#because(at, `${expected[state]} must come, and ${found}`);
  }

  #because(at: number, why: string): HpcserveError {
    const { bytes } = this;
    return new HpcserveError('E_REQUEST_JSON', {
      what: bytes.length === 0 ? 'the request has no body' : 'the body of the request is not valid JSON',
      because: `at ${describePlace(bytes, at)}: ${why}`,
    });
  }
}

function describeByte(bytes: Buffer, at: number): string {
  const byte = bytes[at]!;
  return byte > 32 && byte < 127
    ? String.fromCharCode(byte)
    : `the byte 0x${byte.toString(16).padStart(2, '0')}`;
}

/** Lines are counted in small bodies, which people write; in others their place in bytes must do. */
function describePlace(bytes: Buffer, at: number): string {
  if (at > 65_536) return `byte ${at + 1}`;
  const before = bytes.toString('latin1', 0, at);
  const line = before.split('\n').length;
  return `line ${line}, column ${at - before.lastIndexOf('\n')} (byte ${at + 1})`;
}
