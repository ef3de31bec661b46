const QUOTE = 34;
const BACKSLASH = 92;
const OPEN_BRACE = 123;
const CLOSE_BRACE = 125;
const OPEN_BRACKET = 91;
const CLOSE_BRACKET = 93;

/** How many objects and lists are open at `at`; what stands before the first brace is no JSON. */
export function depthAt(bytes: Buffer, start: number, at: number): number {
  let depth = 0;
  for (let offset = bytes.indexOf(OPEN_BRACE, start); offset < at; offset++) {
    const byte = bytes[offset];
    if (byte === OPEN_BRACE || byte === OPEN_BRACKET) depth++;
    else if (byte === CLOSE_BRACE || byte === CLOSE_BRACKET) depth--;
    else if (byte === QUOTE) offset = endOfString(bytes, offset, at);
  }
  return depth;
}

/** Offset of the quote that closes the string opened at `open`; `end` where none does. */
export function endOfString(bytes: Buffer, open: number, end: number): number {
  for (let offset = open + 1; offset < end; offset++) {
    if (bytes[offset] === BACKSLASH) offset++;
    else if (bytes[offset] === QUOTE) return offset;
  }
  return end;
}

/** Behind the object that is opened at `open`; −1 where the bytes end before. */
export function endOfObject(bytes: Buffer, open: number, end: number): number {
  let depth = 0;
  for (let offset = open; offset < end; offset++) {
    const byte = bytes[offset];
    if (byte === QUOTE) offset = endOfString(bytes, offset, end);
    else if (byte === OPEN_BRACE) depth++;
    else if (byte === CLOSE_BRACE && --depth === 0) return offset + 1;
  }
  return -1;
}
