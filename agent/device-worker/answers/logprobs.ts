import type { SampledToken } from '../../../spec/engine-contract.ts';
import type { PieceSource } from '../../text/vocabulary.ts';
import type { PlacedToken } from './text-stream.ts';

interface TokenLogprob {
  token: string;
  logprob: number;
  bytes: number[];
}

export interface ChatLogprob extends TokenLogprob {
  top_logprobs: TokenLogprob[];
}

/** JSON knows no −∞; OpenAI writes −9999 for what is below every bound. */
const least = -9999;

function describe(pieces: PieceSource, token: number, logprob: number): TokenLogprob {
  const bytes = pieces.piece(token, true);
  return {
    token: Buffer.from(bytes).toString('utf8'),
    logprob: Number.isFinite(logprob) ? logprob : least,
    bytes: Array.from(bytes),
  };
}

/** `choices[].logprobs.content` of a chat completion. */
export function chatLogprobs(tokens: readonly PlacedToken[], pieces: PieceSource): ChatLogprob[] {
  return tokens.flatMap(({ sampled }) => {
    if (sampled.logprob === undefined) return [];
    return {
      ...describe(pieces, sampled.token, sampled.logprob),
      top_logprobs: (sampled.top ?? []).map(({ token, logprob }) => describe(pieces, token, logprob)),
    };
  });
}

/** `choices[].logprobs` of a text completion. */
export interface CompletionLogprobs {
  tokens: string[];
  token_logprobs: (number | null)[];
  top_logprobs: (Record<string, number> | null)[];
  /** Characters from the start of the text. */
  text_offset: number[];
}

export function noLogprobs(): CompletionLogprobs {
  return { tokens: [], token_logprobs: [], top_logprobs: [], text_offset: [] };
}

/** @param sampled absent log probability: the first token of a prompt, which nothing predicts */
export function addCompletionLogprob(
  to: CompletionLogprobs,
  sampled: SampledToken,
  offset: number,
  pieces: PieceSource,
): void {
  const { token, logprob, top } = sampled;
  to.tokens.push(describe(pieces, token, 0).token);
  to.token_logprobs.push(logprob === undefined ? null : Math.max(logprob, least));
  to.text_offset.push(offset);
  if (logprob === undefined) {
    to.top_logprobs.push(null);
    return;
  }
  const alternatives: Record<string, number> = {};
  for (const alternative of top ?? []) {
    const { token: text, logprob: value } = describe(pieces, alternative.token, alternative.logprob);
    // Different tokens may have the same text; the more probable one comes first and stays.
    alternatives[text] ??= value;
  }
  // The chosen token is always listed, as in OpenAI's API.
  alternatives[describe(pieces, token, 0).token] ??= Math.max(logprob, least);
  to.top_logprobs.push(alternatives);
}

export function joinCompletionLogprobs(to: CompletionLogprobs, from: CompletionLogprobs): void {
  to.tokens.push(...from.tokens);
  to.token_logprobs.push(...from.token_logprobs);
  to.top_logprobs.push(...from.top_logprobs);
  to.text_offset.push(...from.text_offset);
}
