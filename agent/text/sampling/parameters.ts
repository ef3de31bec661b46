/** How the next token of a sequence is chosen; plain data, so that it travels between threads. */
export interface SamplingParameters {
  /** 0: greedy. Lower than 1 sharpens, higher flattens. */
  temperature: number;
  /** Keep the k most probable tokens; 0 keeps all. */
  top_k: number;
  /** Keep the smallest set of most probable tokens whose probability reaches this; 1 keeps all. */
  top_p: number;
  /** Drop tokens less probable than this share of the most probable one; 0 drops none. */
  min_p: number;
  /** Keep the most typical tokens (Meister et al. 2022) up to this probability; 1 keeps all. */
  typical_p: number;
  /** Subtracted from the logit of every token that the answer already holds. */
  presence_penalty: number;
  /** Subtracted once for each time that the answer already holds the token. */
  frequency_penalty: number;
  /**
   * Divides positive and multiplies negative logits of tokens of prompt and answer (CTRL, Keskar et al. 2019); 1: none.
   */
  repetition_penalty: number;
  /** Added to logits before everything else: pairs of token and bias. */
  logit_bias: readonly (readonly [token: number, bias: number])[];
  /** Until the answer has this many tokens, stop tokens cannot be chosen. */
  min_tokens: number;
  seed: number;
  /** Which of the `n` answers this is; another stream of random numbers each. */
  choice: number;
  /** Number of alternatives to report beside the chosen token's log probability; absent: no log probabilities. */
  logprobs?: number;
}

/** Temperatures below this are greedy: dividing by them would overflow before it could matter. */
export const greedyBelow = 1e-5;
