import { HpcserveError } from '../../../spec/errors/error.ts';
import type { ServedModel } from '../served-model.ts';

/**
 * Tokens that an answer may have.
 * @param wanted what the request asked for; absent: as many as fit
 * @throws HpcserveError E_CONTEXT_LENGTH with the numbers
 */
export function answerLength_tokens(
  prompt: number,
  wanted: number | undefined,
  context: number,
  param: string,
): number {
  const details = { param };
  if (prompt + (wanted === 0 ? 0 : 1) > context)
    throw new HpcserveError('E_CONTEXT_LENGTH', {
      what: `This model's maximum context length is ${context} tokens, and the prompt alone has ${prompt}`,
      details,
    });
  if (wanted === undefined) return context - prompt;
  if (prompt + wanted > context)
    throw new HpcserveError('E_CONTEXT_LENGTH', {
      what: `This model's maximum context length is ${context} tokens. However, you requested ${prompt + wanted} tokens (${prompt} in the prompt, ${wanted} for the answer)`,
      try: `shorten the prompt, or ask for at most ${context - prompt} tokens`,
      details,
    });
  return wanted;
}

/**
 * Bytes for each token of the context up to which a text is made into tokens at once: texts that people send have four.
 * Lower: the tokens of long texts are counted twice; higher: texts that do not fit hold up every stream for longer.
 */
const bytes_per_token = 8;
/** A text that is longer is counted by parts, until it is certain that it does not fit. */
const part_chars = 64 * 1024;
/** At the ends of parts a few tokens more may be counted than the whole text has. */
const counted_factor = 1.25;

/**
 * Refuses a text that cannot fit before it is tokenized, which for megabytes would hold up every stream.
 * @throws HpcserveError E_CONTEXT_LENGTH
 */
export function checkTextLength(text: string, model: ServedModel, param: string): void {
  const { longest_token_bytes, vocabulary } = model.text!;
  const { context_tokens } = model;
  const bytes = Buffer.byteLength(text);
  const refuse = (least: number): never => {
    throw new HpcserveError('E_CONTEXT_LENGTH', {
      what: `This model's maximum context length is ${context_tokens} tokens, and a prompt of ${bytes} bytes has at least ${least}`,
      details: { param },
    });
  };
  const least = Math.ceil(bytes / longest_token_bytes);
  if (least > context_tokens) refuse(least);
  if (bytes <= Math.max(part_chars, bytes_per_token * context_tokens)) return;
  let counted = 0;
  for (let at = 0; at < text.length; at += part_chars) {
    const part = text.slice(at, at + part_chars);
    counted += vocabulary.tokenize(part, { add_special: false, parse_special: false }).length;
    if (counted > counted_factor * context_tokens + 1) refuse(Math.floor(counted / counted_factor));
  }
}
