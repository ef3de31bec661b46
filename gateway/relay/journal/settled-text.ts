import { replacement } from './text-continuation.ts';

/** Tokens of the prompt that are read along: how a token is spelled may depend on those before it. */
const context_tokens = 8;
/**
 * Tokens at the end that may all be parts of characters, or bytes that are none. Lower: fewer questions; higher:
 * streams of such bytes can be continued.
 */
const unsettled_max = 32;

/** Where the text of an answer ends with a whole character. */
export interface SettledText {
  /** Tokens up to there. */
  tokens: number;
  /** Their text as the model wrote it, marks of reasoning and the like included. */
  text: string;
  /** How the prompt ends. */
  before: string;
}

/**
 * Finds the last token behind which an engine had sent all of its text, by having a replica spell the tokens. Engines
 * hold back what is no whole character yet (Hugging Face's `DecodeStream`), and of a prompt that ends within a
 * character they would say what they should not, or nothing of the character.
 * @returns undefined where there is none near the end, or where the tokens do not spell a text of their own
 */
export async function settledText(
  prompt_ids: readonly number[],
  ids: readonly number[],
  detokenize: (ids: readonly number[]) => Promise<string>,
): Promise<SettledText | undefined> {
  const context = prompt_ids.slice(-context_tokens);
  const before = await detokenize(context);
  const least = Math.max(0, ids.length - unsettled_max);
  for (let tokens = ids.length; tokens >= least; tokens--) {
    const whole = tokens === 0 ? before : await detokenize([...context, ...ids.slice(0, tokens)]);
    if (whole.endsWith(replacement)) continue;
    return whole.startsWith(before) ? { tokens, text: whole.slice(before.length), before } : undefined;
  }
  return undefined;
}
