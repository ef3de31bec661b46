/** What a stretch of text adds to a tool call. */
export interface CallProgress {
  /** Given once, as soon as it is known. */
  name?: string;
  /** Next stretch of the arguments' JSON text, given only after the name. */
  arguments?: string;
}

/** The text of one call, read as it arrives. */
export interface CallText {
  readonly state: 'reading' | 'done' | 'invalid';
  /** Everything read so far, for the case that it was no call after all. */
  readonly raw: string;
  /** Whether something of it was already passed on. */
  readonly started: boolean;
  /**
   * Reads up to the point where the name becomes known, or the call ends: what was told before that point
   * must not depend on what follows.
   * @returns how much of the text was read, and what it told.
   */
  read(text: string): { length: number; progress: CallProgress };
}

/**
 * Reads one JSON object `{"name": …, "arguments" | "parameters": {…}}` as it arrives, letter by letter, so
 * that arguments can be streamed before the object is complete.
 */
export class CallReader implements CallText {
  state: CallText['state'] = 'reading';
  raw = '';
  #depth = 0;
  #expect: 'open' | 'key' | 'colon' | 'value' | 'scalar' | 'comma' = 'open';
  #inString = false;
  #escaped = false;
  #key = '';
  #piece = '';
  #name: string | undefined;
  #nameSent = false;
  /** JSON text of the arguments so far. */
  #argumentsText = '';
  #argumentsSent = 0;

  read(text: string): { length: number; progress: CallProgress } {
    let length = 0;
    for (const character of text) {
      if (this.state !== 'reading' || (this.#name !== undefined && !this.#nameSent)) break;
      length += character.length;
      this.raw += character;
      this.#step(character);
    }
    return { length, progress: this.#progress() };
  }

  get started(): boolean {
    return this.#nameSent;
  }

  #progress(): CallProgress {
    const progress: CallProgress = {};
    if (this.#name === undefined || (this.state === 'invalid' && !this.#nameSent)) return progress;
    if (!this.#nameSent) {
      progress.name = this.#name;
      this.#nameSent = true;
    }
    if (this.state === 'done' && this.#argumentsText === '') this.#argumentsText = '{}';
    if (this.#argumentsText.length > this.#argumentsSent) {
      progress.arguments = this.#argumentsText.slice(this.#argumentsSent);
      this.#argumentsSent = this.#argumentsText.length;
    }
    return progress;
  }

  #step(character: string): void {
    if (this.#inString) {
      this.#append(character);
      if (this.#escaped) this.#escaped = false;
      else if (character === '\\') this.#escaped = true;
      else if (character === '"') {
        this.#inString = false;
        if (this.#depth === 1) this.#stringEnds();
      }
      return;
    }
    if (this.#depth > 1) {
      this.#append(character);
      if (character === '"') this.#inString = true;
      else if (character === '{' || character === '[') this.#depth++;
      else if ((character === '}' || character === ']') && --this.#depth === 1) this.#valueEnds();
      return;
    }
    if (this.#expect !== 'scalar' && /\s/.test(character)) return;
    this.#atTop(character);
  }

  /** A letter outside of strings, in the object itself. */
  #atTop(character: string): void {
    switch (this.#expect) {
      case 'open':
        if (character !== '{') {
          this.#fail();
          return;
        }
        this.#depth = 1;
        this.#expect = 'key';
        return;
      case 'key':
        if (character === '}') {
          this.#close();
          return;
        }
        if (character !== '"') {
          this.#fail();
          return;
        }
        this.#piece = character;
        this.#inString = true;
        return;
      case 'colon':
        if (character !== ':') {
          this.#fail();
          return;
        }
        this.#expect = 'value';
        this.#piece = '';
        return;
      case 'value':
        if (character === '}' || character === ',') {
          this.#fail();
          return;
        }
        this.#append(character);
        if (character === '"') this.#inString = true;
        else if (character === '{' || character === '[') this.#depth++;
        else this.#expect = 'scalar';
        return;
      case 'scalar':
        if (character === ',' || character === '}') {
          this.#valueEnds();
          if (this.state === 'reading') this.#atTop(character);
        } else this.#append(character);
        return;
      case 'comma':
        if (character === '}') {
          this.#close();
          return;
        }
        if (character !== ',') {
          this.#fail();
          return;
        }
        this.#expect = 'key';
    }
  }

  #append(character: string): void {
    this.#piece += character;
    // An object is passed on as it grows; a string that holds JSON is decoded once it is complete.
    if (this.#isArguments && this.#piece.startsWith('{')) this.#argumentsText = this.#piece;
  }

  get #isArguments(): boolean {
    return (this.#key === 'arguments' || this.#key === 'parameters') && this.#expect === 'value';
  }

  #stringEnds(): void {
    if (this.#expect === 'key') {
      const key = parse(this.#piece);
      if (typeof key !== 'string') {
        this.#fail();
        return;
      }
      this.#key = key;
      this.#expect = 'colon';
    } else this.#valueEnds();
  }

  #valueEnds(): void {
    const value = parse(this.#piece);
    if (value === undefined) {
      this.#fail();
      return;
    }
    if (this.#key === 'name') {
      if (typeof value !== 'string') {
        this.#fail();
        return;
      }
      this.#name = value;
    } else if (this.#key === 'arguments' || this.#key === 'parameters') {
      if (typeof value === 'string') this.#argumentsText = value;
      else if (value === null) this.#argumentsText = '{}';
      else if (typeof value !== 'object') {
        this.#fail();
        return;
      }
    }
    this.#expect = 'comma';
  }

  #close(): void {
    this.#depth = 0;
    if (this.#name === undefined) this.#fail();
    else this.state = 'done';
  }

  #fail(): void {
    this.state = 'invalid';
  }
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}
