import { depthAt, endOfObject, endOfString } from './json-places.ts';

/** Token counts as chat completions, completions, embeddings and responses report them. */
export interface TokenUsage {
  prompt_tokens?: number;
  completion_tokens?: number;
  cached_tokens?: number;
  reasoning_tokens?: number;
}

const usageKey = Buffer.from('"usage"');
const finishKey = Buffer.from('"finish_reason"');
const LBRACE = 123;
const RBRACE = 125;
const LBRACKET = 91;
const RBRACKET = 93;
const QUOTE = 34;
const COLON = 58;

/**
 * The `usage` object in bytes [start, end) of a JSON text, without parsing the rest. Inside a JSON string
 * the key would have its quotes escaped, so its bytes can only be a key or a string of their own; what follows
 * tells which. Engines give back what a request says (`metadata`), so one that is deeper does not count.
 *
 * @param depth how many objects it is in
 */
export function findUsage(bytes: Buffer, start = 0, end = bytes.length, depth = 1): TokenUsage | undefined {
  const text = start === 0 && end === bytes.length ? bytes : bytes.subarray(start, end);
  for (
    let at = text.lastIndexOf(usageKey);
    at !== -1;
    at = at === 0 ? -1 : text.lastIndexOf(usageKey, at - 1)
  ) {
    const open = valueAfter(text, at + usageKey.length);
    if (open === -1 || text[open] !== LBRACE) continue;
    const close = endOfObject(text, open, text.length);
    if (close === -1 || !closesBehind(text, close, depth)) continue;
    const usage = readUsage(text.toString('latin1', open, close));
    if (usage) return usage;
  }
  return undefined;
}

/** The same at the beginning of an answer whose end is not there. */
export function findUsageAtHead(head: Buffer): TokenUsage | undefined {
  for (let at = head.indexOf(usageKey); at !== -1; at = head.indexOf(usageKey, at + 1)) {
    const open = valueAfter(head, at + usageKey.length);
    if (open === -1 || head[open] !== LBRACE || depthAt(head, 0, at) !== 1) continue;
    const close = endOfObject(head, open, head.length);
    return close === -1 ? undefined : readUsage(head.toString('latin1', open, close));
  }
  return undefined;
}

/** Whether behind a place in a JSON text so many containers, and no more, are closed. */
function closesBehind(text: Buffer, from: number, containers: number): boolean {
  let depth = containers;
  for (let offset = from; offset < text.length; offset++) {
    const byte = text[offset]!;
    if (byte === QUOTE) offset = endOfString(text, offset, text.length);
    else if (byte === LBRACE || byte === LBRACKET) depth++;
    else if ((byte === RBRACE || byte === RBRACKET) && --depth < 0) return false;
  }
  return depth === 0;
}

/** The last finish reason that is a string; undefined where there is none. */
export function findFinishReason(bytes: Buffer, start = 0, end = bytes.length): string | undefined {
  const text = start === 0 && end === bytes.length ? bytes : bytes.subarray(start, end);
  for (
    let at = text.lastIndexOf(finishKey);
    at !== -1;
    at = at === 0 ? -1 : text.lastIndexOf(finishKey, at - 1)
  ) {
    const open = valueAfter(text, at + finishKey.length);
    if (open === -1 || text[open] !== QUOTE) continue;
    const close = text.indexOf(QUOTE, open + 1);
    if (close !== -1 && close - open <= 64) return text.toString('latin1', open + 1, close);
  }
  return undefined;
}

/** Offset of the value of the key that ends at `at`; -1 where no colon follows. */
function valueAfter(text: Buffer, at: number): number {
  let offset = skipSpace(text, at);
  if (text[offset] !== COLON) return -1;
  offset = skipSpace(text, offset + 1);
  return offset < text.length ? offset : -1;
}

function skipSpace(text: Buffer, at: number): number {
  let offset = at;
  while (offset < text.length && text[offset]! <= 32) offset++;
  return offset;
}

/** The usage that a JSON text is; undefined where it is none. */
export function readUsage(json: string): TokenUsage | undefined {
  try {
    return tokenUsageOf(JSON.parse(json) as Record<string, unknown>);
  } catch (error) {
    if (error instanceof SyntaxError) return undefined;
    throw error;
  }
}

/** Both dialects: prompt/completion tokens (chat, completions, embeddings) and input/output tokens (responses). */
export function tokenUsageOf(usage: Record<string, unknown>): TokenUsage | undefined {
  const prompt = count(usage.prompt_tokens) ?? count(usage.input_tokens);
  const completion = count(usage.completion_tokens) ?? count(usage.output_tokens);
  if (prompt === undefined && completion === undefined) return undefined;
  const result: TokenUsage = {};
  if (prompt !== undefined) result.prompt_tokens = prompt;
  if (completion !== undefined) result.completion_tokens = completion;
  const cached = detail(usage.prompt_tokens_details ?? usage.input_tokens_details, 'cached_tokens');
  if (cached !== undefined) result.cached_tokens = cached;
  const reasoning = detail(
    usage.completion_tokens_details ?? usage.output_tokens_details,
    'reasoning_tokens',
  );
  if (reasoning !== undefined) result.reasoning_tokens = reasoning;
  return result;
}

function detail(details: unknown, name: string): number | undefined {
  if (typeof details !== 'object' || details === null) return undefined;
  return count((details as Record<string, unknown>)[name]);
}

function count(value: unknown): number | undefined {
  return Number.isSafeInteger(value) && (value as number) >= 0 ? (value as number) : undefined;
}
