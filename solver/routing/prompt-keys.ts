import type { PromptKeys } from './candidate.ts';
import { emptyHash, extendHash } from './hash.ts';

/** Units of text in the first block. Whether a prompt is long enough to look for is said in tokens, by policies. */
const firstBlock = 64;
/** Hashed of a prompt at most: what is alike this far is alike enough. */
export const prompt_chars_max = firstBlock * 512;
/** Of the end of an opening so much is hashed: a person's words are there. */
const openingEnd = 1024;

/** Keys of prompts that only meet those of the same scope. @param scope absent: all that have none */
export function scopedKeys(keys: PromptKeys | undefined, scope: string | undefined): PromptKeys | undefined {
  if (keys === undefined || scope === undefined) return keys;
  const within = (hash: number): number => extendHash(hash, scope, 0, scope.length);
  return { prefix: within(keys.prefix), conversation: within(keys.conversation) };
}

/**
 * Hashes of a prompt's text by which replicas that know its beginning can be found. The prefix is that of the
 * largest block 64·2^k that the prompt fills: prompts with a long common beginning agree in it whatever follows, and
 * a conversation keeps it until its length doubles, so all its turns together compute no more than twice its text
 * anew. Blocks of one size would need a memory of who has which.
 *
 * @param parts the prompt's text in order, such as contents of messages
 * @param opening how many of them open the conversation: up to the first that a person wrote
 * @returns undefined where the prompt is too short to matter
 */
export function promptKeys(parts: readonly string[], opening: number): PromptKeys | undefined {
  let length = 0;
  for (const part of parts) length += part.length;
  if (length < firstBlock) return undefined;
  let block = firstBlock;
  while (block * 2 <= length && block < prompt_chars_max) block *= 2;
  let hash = emptyHash;
  let conversation = emptyHash;
  let left = block;
  for (const [index, part] of parts.entries()) {
    const taken = Math.min(left, part.length);
    hash = extendHash(hash, part, 0, taken);
    left -= taken;
    // A long opening is told from others by its end: that is where the person's words are.
    if (index < opening)
      conversation = extendHash(conversation, part, Math.max(0, part.length - openingEnd), part.length);
    else if (left === 0) break;
  }
  return { prefix: hash, conversation };
}
