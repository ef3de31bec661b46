import type { PromptKeys } from '../../solver/routing/candidate.ts';
import { promptKeys } from '../../solver/routing/prompt-keys.ts';

/** Pieces of text looked at in one prompt: what lies behind so many is of no weight for who knows its beginning. */
const partsMax = 256;

/** By which replicas that know the beginning of a request's prompt are found; undefined where it is short or no text. */
export function promptKeysOf(body: Record<string, unknown>): PromptKeys | undefined {
  const parts: string[] = [];
  const { messages, prompt, input, instructions } = body;
  let opening = 0;
  if (Array.isArray(messages)) opening = addMessages(messages, parts);
  else if (prompt !== undefined) {
    addText(Array.isArray(prompt) ? prompt[0] : prompt, parts);
    opening = 1;
  } else if (input !== undefined) {
    addText(instructions, parts);
    if (Array.isArray(input)) opening = addMessages(input, parts);
    else {
      addText(input, parts);
      opening = parts.length;
    }
  }
  return promptKeys(parts, opening);
}

/** @returns how many parts there are up to the end of what a person wrote first */
function addMessages(messages: readonly unknown[], parts: string[]): number {
  let opening = 0;
  for (const message of messages) {
    if (typeof message !== 'object' || message === null) continue;
    const { role, content } = message as Record<string, unknown>;
    if (Array.isArray(content)) {
      for (const part of content) addText((part as { text?: unknown } | null)?.text, parts);
    } else addText(content, parts);
    if (opening === 0 && role === 'user') opening = parts.length;
    if (parts.length >= partsMax) break;
  }
  return opening === 0 ? parts.length : opening;
}

function addText(text: unknown, parts: string[]): void {
  if (typeof text === 'string' && text !== '') parts.push(text);
}
