import { depthAt, endOfObject } from './json-places.ts';

const COMMA = 44;
const COLON = 58;
const OPEN_BRACE = 123;
const OPEN_BRACKET = 91;
const CLOSE_BRACKET = 93;
const usageKey = Buffer.from('"usage"');
const choicesKey = Buffer.from('"choices"');
const nothing = Buffer.from('null');

/** The member `usage` of an event: where its key and its value begin, and where it ends. */
export interface UsageMember {
  key: number;
  value: number;
  end: number;
  isNull: boolean;
}

/**
 * The member `usage` at the top of the JSON that the event [start, end) carries.
 * @param key where in it `"usage"` stands first
 */
export function usageMember(bytes: Buffer, start: number, end: number, key: number): UsageMember | undefined {
  for (let at = key; at !== -1 && at < end; at = bytes.indexOf(usageKey, at + usageKey.length)) {
    const colon = skipSpace(bytes, at + usageKey.length);
    if (bytes[colon] !== COLON) continue;
    const value = skipSpace(bytes, colon + 1);
    const isNull = isNothing(bytes, value);
    if ((!isNull && bytes[value] !== OPEN_BRACE) || depthAt(bytes, start, at) !== 1) continue;
    const close = isNull ? value + nothing.length : endOfObject(bytes, value, end);
    if (close !== -1) return { key: at, value, end: close, isNull };
  }
  return undefined;
}

/**
 * Takes the member out of the event in place, by moving what stands before it.
 * @returns where the event begins now
 */
export function withoutUsage(bytes: Buffer, start: number, { key, end }: UsageMember): number {
  let from = key;
  let to = end;
  const before = skipSpaceBack(bytes, key);
  if (bytes[before] === COMMA) from = before;
  else {
    const after = skipSpace(bytes, to);
    if (bytes[after] === COMMA) to = after + 1;
  }
  bytes.copyWithin(start + to - from, start, from);
  return start + to - from;
}

/** Makes the member's value null, as OpenAI has it in every chunk but the last. Returns where the event begins now. */
export function withNullUsage(bytes: Buffer, start: number, { value, end }: UsageMember): number {
  const from = end - nothing.length;
  if (from < value) return start;
  nothing.copy(bytes, from);
  bytes.copyWithin(start + from - value, start, value);
  return start + from - value;
}

/** Whether an event has an empty list of choices, as the chunk has that `include_usage` adds. */
export function hasNoChoices(bytes: Buffer, start: number, end: number): boolean {
  for (
    let at = bytes.indexOf(choicesKey, start);
    at !== -1 && at < end;
    at = bytes.indexOf(choicesKey, at + 1)
  ) {
    const colon = skipSpace(bytes, at + choicesKey.length);
    if (bytes[colon] !== COLON || depthAt(bytes, start, at) !== 1) continue;
    const open = skipSpace(bytes, colon + 1);
    return bytes[open] === OPEN_BRACKET && bytes[skipSpace(bytes, open + 1)] === CLOSE_BRACKET;
  }
  return false;
}

function isNothing(bytes: Buffer, at: number): boolean {
  const behind = at + nothing.length;
  return behind <= bytes.length && bytes.compare(nothing, 0, nothing.length, at, behind) === 0;
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
