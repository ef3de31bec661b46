import type { Generation } from './generation.ts';

export interface Usage {
  prompt_tokens: number;
  completion_tokens: number;
  total_tokens: number;
  prompt_tokens_details: { cached_tokens: number };
  completion_tokens_details?: { reasoning_tokens: number };
}

/** Each prompt counts once, also where it is answered several times. */
export function usageOf(generation: Generation): Usage {
  const { prompt_tokens, completion_tokens, cached_tokens, reasoning_tokens } = generation;
  return {
    prompt_tokens,
    completion_tokens,
    total_tokens: prompt_tokens + completion_tokens,
    prompt_tokens_details: { cached_tokens: Math.min(cached_tokens, prompt_tokens) },
    completion_tokens_details: reasoning_tokens === undefined ? undefined : { reasoning_tokens },
  };
}
