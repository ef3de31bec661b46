/** A prompt's text in blocks, for the tree of prefixes. */
import { emptyHash, extendHash, mix } from '../../solver/routing/hash.ts';
import type { PromptBlocks } from '../../solver/routing/model-prefixes.ts';
import type { RequestScan } from './request-scan.ts';

/**
 * Bytes of text in a block: with the tokenizers of most models the 16 tokens that engines share at least. Lower:
 * shorter beginnings are told apart; higher: less memory.
 */
export const block_bytes = 64;
/**
 * Of a prompt so much is looked at, as JSON spells it. Lower: less work for each request; higher: longer ones are known
 * whole.
 */
const prompt_bytes_max = 256 * 1024;
const words_per_block = block_bytes / Int32Array.BYTES_PER_ELEMENT;
/** Between two texts: no JSON string has this byte. */
const boundary = 0;

/** One prompt at a time is read: nothing waits in between. */
const words = new Int32Array(prompt_bytes_max / Int32Array.BYTES_PER_ELEMENT);
const text = Buffer.from(words.buffer);

/**
 * The prompt of a request; undefined where it has no text of a block's length. Text counts as it is spelled, escapes
 * included: a client spells the same text in the same way.
 */
export function promptBlocksOf({ bytes, promptParts }: RequestScan): PromptBlocks | undefined {
  let length = 0;
  let units = 0;
  for (const { start, end } of promptParts.parts) {
    units += end - start - 1;
    if (length === prompt_bytes_max) continue;
    length += bytes.copy(text, length, start + 1, Math.min(end - 1, start + 1 + prompt_bytes_max - length));
    if (length < prompt_bytes_max) text[length++] = boundary;
  }
  const count = Math.floor(length / block_bytes);
  if (count === 0) return undefined;
  const blocks = new Uint32Array(count);
  let hash = emptyHash;
  for (let block = 0, at = 0; block < count; block++) {
    for (const end = at + words_per_block; at < end; at++) hash = mix(hash, words[at]!);
    blocks[block] = hash;
  }
  return { blocks, units };
}

const media = ['"image_url"', '"video_url"', '"audio_url"', '"input_audio"'].map((name) => Buffer.from(name));

/** Whether an engine's blocks of it are of tokens alone: none of an image, of sound or of a film. */
export function isTextAlone({ bytes }: RequestScan): boolean {
  return !media.some((name) => bytes.includes(name));
}

/** Blocks of prompts that only meet those of the same scope. @param scope absent: all that have none */
export function scopedBlocks(
  prompt: PromptBlocks | undefined,
  scope: string | undefined,
): PromptBlocks | undefined {
  if (prompt === undefined || scope === undefined) return prompt;
  const salt = extendHash(emptyHash, scope, 0, scope.length);
  return { ...prompt, blocks: prompt.blocks.map((hash) => mix(hash, salt)) };
}
