const QUOTE = 34;
const COLON = 58;
const COMMA = 44;
const OPEN_BRACKET = 91;
const CLOSE_BRACKET = 93;
const DIGIT_0 = 48;
const DIGIT_9 = 57;
const SPACE = 32;
/** The end of `"token_ids"` and of `"prompt_token_ids"`. */
const keyEnd = Buffer.from('token_ids"');
/** The key of the prompt's. */
const promptKey = Buffer.from('"prompt_token_ids"');
const promptPrefix = Buffer.from('"prompt_');
const nothing = Buffer.from('null');
const emptyDelta = Buffer.from('"delta":{}');
const unfinished = Buffer.from('"finish_reason":null');
const withoutLogprobs = Buffer.from('"logprobs":null');

/** The ids of the prompt that the event [start, end) tells; undefined where it tells none. */
export function promptTokenIds(bytes: Buffer, start: number, end: number): Int32Array | undefined {
  for (
    let at = bytes.indexOf(promptKey, start);
    at !== -1 && at < end;
    at = bytes.indexOf(promptKey, at + 1)
  ) {
    const colon = skipSpace(bytes, at + promptKey.length);
    const open = bytes[colon] === COLON ? skipSpace(bytes, colon + 1) : -1;
    if (open === -1 || bytes[open] !== OPEN_BRACKET) continue;
    const close = bytes.indexOf(CLOSE_BRACKET, open);
    if (close === -1 || close >= end) return undefined;
    return numbersIn(bytes, open + 1, close);
  }
  return undefined;
}

/** Undefined where something else than whole numbers and commas stands there. */
function numbersIn(bytes: Buffer, start: number, end: number): Int32Array | undefined {
  const ids = new Int32Array(Math.ceil((end - start) / 2));
  let count = 0;
  let id = -1;
  for (let at = start; at <= end; at++) {
    const byte = at === end ? COMMA : bytes[at]!;
    if (byte >= DIGIT_0 && byte <= DIGIT_9) id = 10 * Math.max(0, id) + byte - DIGIT_0;
    else if (byte === COMMA && id >= 0) {
      ids[count++] = id;
      id = -1;
    } else if (byte > SPACE) return undefined;
  }
  return ids.subarray(0, count);
}

/**
 * Takes the lists of token ids out of the event [start, end) in place, by moving what stands before them. What an
 * engine says that was not asked for them stays: `null`. In a JSON text such a key can only be a key, since a string
 * has its quotes escaped.
 * @returns where the event begins now; `end` where it was sent for the ids alone
 */
export function withoutTokenIds(bytes: Buffer, start: number, end: number): number {
  let begin = start;
  for (let at = bytes.indexOf(keyEnd, start); at !== -1 && at < end; at = bytes.indexOf(keyEnd, at + 1)) {
    const colon = skipSpace(bytes, at + keyEnd.length);
    const open = bytes[colon] === COLON ? skipSpace(bytes, colon + 1) : -1;
    const key = keyBefore(bytes, at);
    if (open === -1 || bytes[open] !== OPEN_BRACKET || key === -1) continue;
    const close = bytes.indexOf(CLOSE_BRACKET, open) + 1;
    // No JSON: what stands behind this event is not its own.
    if (close === 0 || close > end) break;
    begin = withNull(bytes, begin, key, open, close);
  }
  return begin !== start && saysNothing(bytes, begin, end) ? end : begin;
}

function keyBefore(bytes: Buffer, at: number): number {
  if (bytes[at - 1] === QUOTE) return at - 1;
  const prefix = at - promptPrefix.length;
  return prefix >= 0 && bytes.compare(promptPrefix, 0, promptPrefix.length, prefix, at) === 0 ? prefix : -1;
}

/** Bytes [open, close) become `null`; where that is longer, the member goes with the comma before it. */
function withNull(bytes: Buffer, begin: number, key: number, open: number, close: number): number {
  const from = close - nothing.length;
  if (from >= open) {
    nothing.copy(bytes, from);
    bytes.copyWithin(begin + from - open, begin, open);
    return begin + from - open;
  }
  const member = bytes[key - 1] === COMMA ? key - 1 : key;
  bytes.copyWithin(begin + close - member, begin, member);
  return begin + close - member;
}

/** With a parser of tool calls vLLM sends an empty chunk where only ids are to be told. */
function saysNothing(bytes: Buffer, begin: number, end: number): boolean {
  const event = bytes.subarray(begin, end);
  return event.includes(emptyDelta) && event.includes(unfinished) && event.includes(withoutLogprobs);
}

function skipSpace(bytes: Buffer, at: number): number {
  let offset = at;
  while (bytes[offset]! <= 32) offset++;
  return offset;
}
