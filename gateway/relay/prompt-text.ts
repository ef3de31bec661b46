import type { PromptKeys } from '../../solver/routing/candidate.ts';
import { prompt_chars_max, promptKeys } from '../../solver/routing/prompt-keys.ts';
import type { RequestScan, Text } from './request-scan.ts';

/** A text of more bytes than any that is hashed whole can have is not decoded whole. */
const whole_bytes_max = 6 * prompt_chars_max;
/** Of the end of such a text so much is looked at; what it spells does not matter, only whether two are the same. */
const tail_bytes = 1024;
const BACKSLASH = 92;
const SMALL_U = 117;

/**
 * By which replicas that know the beginning of a request's prompt are found; undefined where it is short or no text.
 */
export function promptKeysOf(scan: RequestScan): PromptKeys | undefined {
  const { parts, opening } = scan.promptParts;
  const texts: string[] = [];
  let characters = 0;
  for (const [index, span] of parts.entries()) {
    if (index >= opening && characters >= prompt_chars_max) break;
    const text = textOf(scan.bytes, span);
    texts.push(text);
    characters += text.length;
  }
  return promptKeys(texts, opening);
}

/** A text, without its middle where that is long. */
function textOf(bytes: Buffer, { start, end, escaped }: Text): string {
  if (!escaped && end - start <= whole_bytes_max) return bytes.toString('utf8', start + 1, end - 1);
  if (end - start <= whole_bytes_max) return JSON.parse(bytes.toString('utf8', start, end)) as string;
  const cut = endOfCharacters(bytes, start + 1, prompt_chars_max);
  return `${JSON.parse(`${bytes.toString('utf8', start, cut)}"`)}${bytes.toString('latin1', end - tail_bytes, end)}`;
}

/** Behind so many characters of a string that has more, and behind no half of one. */
function endOfCharacters(bytes: Buffer, start: number, characters: number): number {
  let at = start;
  for (let count = 0; count < characters || (bytes[at]! & 0xc0) === 0x80; ) {
    const byte = bytes[at]!;
    if ((byte & 0xc0) !== 0x80) count++;
    at += byte !== BACKSLASH ? 1 : bytes[at + 1] === SMALL_U ? 6 : 2;
  }
  return at;
}
