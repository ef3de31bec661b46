/**
 * How often tokens are sent to each expert of a layer: counts that fade, so that a model which is asked of other things
 * keeps other experts. Immutable, like the histories of `solver/reuse`.
 */

export interface ExpertPopularity {
  /** Faded count of tokens, by expert. */
  counts: readonly number[];
  /** Faded count of tokens that were routed. */
  tokens: number;
}

/** Tokens after which a choice counts half. Lower: follows the subject; higher: follows the model. */
const token_half_life = 4096;

export function newPopularity(experts: number): ExpertPopularity {
  return { counts: Array.from({ length: experts }, () => 0), tokens: 0 };
}

/** @param chosen tokens that were sent to each expert, of `tokens` that were routed together */
export function noteRouting(
  { counts, tokens: before }: ExpertPopularity,
  chosen: readonly number[],
  tokens: number,
): ExpertPopularity {
  const kept = 0.5 ** (tokens / token_half_life);
  return {
    counts: counts.map((count, expert) => kept * count + (chosen[expert] ?? 0)),
    tokens: kept * before + tokens,
  };
}

/**
 * Probability that one token is sent to each expert. Before anything was seen each is as likely as another; so much is
 * kept of that as `used_per_token` tokens would say.
 */
export function routingProbabilities({ counts, tokens }: ExpertPopularity, used_per_token: number): number[] {
  const prior = used_per_token / counts.length;
  return counts.map((count) => Math.min(1, (count + prior) / (tokens + 1)));
}

/** Probability that an iteration of so many tokens reads an expert that one token is sent to with `probability`. */
export function readProbability(probability: number, tokens: number): number {
  return 1 - (1 - probability) ** tokens;
}
