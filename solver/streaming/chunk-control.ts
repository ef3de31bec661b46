/**
 * How many input tokens an iteration takes: the M of its products. Streamed weights cross the link once an iteration,
 * whatever M is, so a small chunk wastes the link and a large one lets decoding sequences wait. The largest is taken
 * that keeps what was promised to them; and what fits under the time that the link takes anyway is free.
 */

export interface ChunkQuestion {
  /** Predicted time of an iteration with so many input tokens beside what decodes; does not fall with them. */
  iteration_ms: (input_tokens: number) => number;
  /** Input tokens that wait. */
  waiting_tokens: number;
  /** Time until the first decoding sequence needs its next token; infinite where none decodes. */
  budget_ms: number;
  settings?: ChunkSettings;
}

export interface ChunkSettings {
  /** Tokens at most. Lower: prompts take more passes over the weights; higher: more memory for activations. */
  chunk_tokens_max: number;
  /** Tokens that are taken in any case, so that prompts do not starve. Lower: they may; higher: tokens come late. */
  chunk_tokens_min: number;
  /** Of the budget this much is used: predictions err. Lower: smoother tokens; higher: faster prompts. */
  budget_share: number;
  /** Longer than decoding alone by this share still counts as free. Lower: less is taken for nothing; higher: later. */
  free_share: number;
  /**
   * Tokens may add so many times the time that they add in the best chunk. Lower: prompts come in larger parts; higher:
   * tokens come more smoothly, and prompts later.
   */
  waste_max: number;
}

export const chunk_settings: ChunkSettings = {
  chunk_tokens_max: 2048,
  chunk_tokens_min: 16,
  budget_share: 0.9,
  free_share: 0.05,
  waste_max: 1.5,
};

/** Input tokens for the next iteration; 0 where none wait. */
export function nextChunk_tokens(question: ChunkQuestion): number {
  const { iteration_ms, waiting_tokens, budget_ms, settings = chunk_settings } = question;
  const most = Math.min(waiting_tokens, settings.chunk_tokens_max);
  if (most <= 0) return 0;
  const limit_ms = Math.max(settings.budget_share * budget_ms, (1 + settings.free_share) * iteration_ms(0));
  if (!(iteration_ms(most) > limit_ms)) return most;
  const least = frugalChunk_tokens(question, most, settings);
  if (iteration_ms(least) > limit_ms) return least;
  // iteration_ms(low) is within the limit, iteration_ms(high) is not.
  let [low, high] = [least, most];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (iteration_ms(middle) <= limit_ms) low = middle;
    else high = middle;
  }
  return low;
}

/**
 * The least chunk whose tokens do not waste time. Those that decode wait for all of a prompt, in however many parts it
 * comes, so what counts is the time that a token adds. Of experts, a few rows read nearly all: parts of few tokens
 * would read them again and again.
 */
function frugalChunk_tokens({ iteration_ms }: ChunkQuestion, most: number, settings: ChunkSettings): number {
  const alone_ms = iteration_ms(0);
  const added_ms = (tokens: number): number => (iteration_ms(tokens) - alone_ms) / tokens;
  const sizes = [most];
  for (let size = Math.min(most, settings.chunk_tokens_min); size < most; size *= 2) sizes.push(size);
  const best_ms = Math.min(...sizes.map(added_ms));
  return Math.min(...sizes.filter((size) => added_ms(size) <= settings.waste_max * best_ms));
}
