import type { SamplingParameters } from './parameters.ts';

/** What prompt and answer hold so far, as far as penalties need it. */
export class TokenHistory {
  /** How often the answer holds each token. */
  readonly output = new Map<number, number>();
  readonly prompt: ReadonlySet<number>;
  output_tokens = 0;

  constructor(prompt: Iterable<number>) {
    this.prompt = new Set(prompt);
  }

  push(token: number): void {
    this.output.set(token, (this.output.get(token) ?? 0) + 1);
    this.output_tokens++;
  }
}

/**
 * Repetition penalty over prompt and answer, then frequency and presence penalty over the answer: the
 * definitions of CTRL (arXiv:1909.05858 §4.1) and of OpenAI's API reference, in the order of vLLM.
 *
 * @param logits shape [n_vocab], modified
 */
export function penalise(logits: Float32Array, history: TokenHistory, parameters: SamplingParameters): void {
  const { repetition_penalty, frequency_penalty, presence_penalty } = parameters;
  if (repetition_penalty !== 1) {
    for (const token of history.prompt) repel(logits, token, repetition_penalty);
    for (const token of history.output.keys())
      if (!history.prompt.has(token)) repel(logits, token, repetition_penalty);
  }
  if (frequency_penalty === 0 && presence_penalty === 0) return;
  for (const [token, times] of history.output)
    logits[token] = logits[token]! - frequency_penalty * times - presence_penalty;
}

function repel(logits: Float32Array, token: number, penalty: number): void {
  const logit = logits[token]!;
  logits[token] = logit > 0 ? logit / penalty : logit * penalty;
}
