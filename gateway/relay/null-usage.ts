const QUOTE = 34;
const BACKSLASH = 92;
const COMMA = 44;
const COLON = 58;
const OPEN_BRACE = 123;
const CLOSE_BRACE = 125;
const OPEN_BRACKET = 91;
const CLOSE_BRACKET = 93;
const usageKey = Buffer.from('"usage"');
const nothing = Buffer.from('null');

/**
 * Engines that are asked for usage put `"usage": null` into every chunk but the last, as OpenAI does. Where only
 * the gateway asked, that member is not for the client: it is taken out of the event in place, by moving what
 * stands before it.
 *
 * @param bytes holds the event [start, end); overwritten up to `end`
 * @param key where in it `"usage"` stands first
 * @returns where the event begins now; `start` where it has no such member at the top of its JSON
 */
export function withoutNullUsage(bytes: Buffer, start: number, end: number, key: number): number {
  for (let at = key; at !== -1 && at < end; at = bytes.indexOf(usageKey, at + usageKey.length)) {
    const value = nullValue(bytes, at + usageKey.length);
    if (value === -1 || depthAt(bytes, start, at) !== 1) continue;
    let from = at;
    let to = value;
    const before = skipSpaceBack(bytes, at);
    if (bytes[before] === COMMA) from = before;
    else {
      const after = skipSpace(bytes, to);
      if (bytes[after] === COMMA) to = after + 1;
    }
    bytes.copyWithin(start + to - from, start, from);
    return start + to - from;
  }
  return start;
}

/** Behind `: null`; −1 where something else follows a key that ends at `at`. */
function nullValue(bytes: Buffer, at: number): number {
  const colon = skipSpace(bytes, at);
  if (bytes[colon] !== COLON) return -1;
  const value = skipSpace(bytes, colon + 1);
  const behind = value + nothing.length;
  return behind <= bytes.length && bytes.compare(nothing, 0, nothing.length, value, behind) === 0
    ? behind
    : -1;
}

/** How many objects and lists are open at `at`; what stands before the first brace is no JSON. */
function depthAt(bytes: Buffer, start: number, at: number): number {
  let depth = 0;
  for (let offset = bytes.indexOf(OPEN_BRACE, start); offset < at; offset++) {
    const byte = bytes[offset];
    if (byte === OPEN_BRACE || byte === OPEN_BRACKET) depth++;
    else if (byte === CLOSE_BRACE || byte === CLOSE_BRACKET) depth--;
    else if (byte === QUOTE) offset = endOfString(bytes, offset, at);
  }
  return depth;
}

/** Offset of the quote that closes the string opened at `open`. */
function endOfString(bytes: Buffer, open: number, end: number): number {
  for (let offset = open + 1; offset < end; offset++) {
    if (bytes[offset] === BACKSLASH) offset++;
    else if (bytes[offset] === QUOTE) return offset;
  }
  return end;
}

function skipSpace(bytes: Buffer, at: number): number {
  let offset = at;
  while (bytes[offset]! <= 32) offset++;
  return offset;
}

/** Offset of the last byte before `at` that is no white space. */
function skipSpaceBack(bytes: Buffer, at: number): number {
  let offset = at - 1;
  while (bytes[offset]! <= 32) offset--;
  return offset;
}
