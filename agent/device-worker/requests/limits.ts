import { HpcserveError } from '../../../spec/errors/error.ts';
import type { ServedModel } from '../served-model.ts';

/**
 * Tokens that an answer may have.
 * @param wanted what the request asked for; absent: as many as fit
 * @throws HpcserveError E_CONTEXT_LENGTH with the numbers
 */
export function answerTokens(
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
 * Refuses a text that cannot fit before it is tokenized, which for megabytes would hold up every stream.
 * @throws HpcserveError E_CONTEXT_LENGTH
 */
export function checkTextLength(text: string, model: ServedModel, param: string): void {
  const bytes = Buffer.byteLength(text);
  const least = Math.ceil(bytes / model.text!.longest_token_bytes);
  if (least <= model.context_tokens) return;
  throw new HpcserveError('E_CONTEXT_LENGTH', {
    what: `This model's maximum context length is ${model.context_tokens} tokens, and a prompt of ${bytes} bytes has at least ${least}`,
    details: { param },
  });
}
