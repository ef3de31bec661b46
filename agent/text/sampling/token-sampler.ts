import type { SampledToken, Sampler } from '../../../spec/engine-contract.ts';
import { type Candidates, drawCandidate, fillCandidates } from './candidates.ts';
import { argmax } from './greedy.ts';
import { describeToken, logProbabilities } from './log-probabilities.ts';
import { keepMinP } from './min-p.ts';
import { greedyBelow, type SamplingParameters } from './parameters.ts';
import { penalise, TokenHistory } from './penalties.ts';
import { uniform } from './philox.ts';
import type { TokenConstraint } from './token-constraint.ts';
import { keepTopP } from './top-p.ts';
import { keepTypicalP } from './typical-p.ts';

export interface SequenceStart {
  /** The prompt alone, without tokens of an answer that is being continued. */
  prompt: Iterable<number>;
  /** Tokens of the answer that were already produced elsewhere. */
  continued: Iterable<number>;
  /** Masked until `min_tokens` are reached. */
  stop_tokens: Iterable<number>;
}

/**
 * Chooses tokens in the order of vLLM: bias and masks, penalties, temperature, top_k, min_p, typical_p,
 * top_p, draw. A grammar is asked about the drawn token only; the whole vocabulary is masked just where it
 * refuses. For an independent second draw this gives the same distribution as masking first, as long as
 * no top_k, top_p, min_p or typical_p is set: P(t) + P(refused) · P(t | allowed) = P(t) / P(allowed).
 */
export class TokenSampler implements Sampler {
  private readonly parameters: SamplingParameters;
  private readonly history: TokenHistory;
  private readonly stopTokens: readonly number[];
  private readonly scratch: Candidates;
  private readonly constraint: TokenConstraint | undefined;

  /** @param scratch buffers for n_vocab tokens, shared by all samplers of the thread. */
  constructor(
    parameters: SamplingParameters,
    start: SequenceStart,
    scratch: Candidates,
    constraint?: TokenConstraint,
  ) {
    this.parameters = parameters;
    this.scratch = scratch;
    this.constraint = constraint;
    this.history = new TokenHistory(start.prompt);
    this.stopTokens = [...start.stop_tokens];
    for (const token of start.continued) this.take(token);
  }

  sample(logits: Float32Array, position: number): SampledToken {
    const { parameters, history } = this;
    const described =
      parameters.logprobs === undefined ? undefined : logProbabilities(logits, parameters.logprobs);
    // Kept aside only where they are asked for: modifying happens in place.
    const raw = described && this.modifies ? logits.slice() : logits;
    for (const [token, bias] of parameters.logit_bias) logits[token] = logits[token]! + bias;
    if (history.output_tokens < parameters.min_tokens) this.forbidStop(logits);
    penalise(logits, history, parameters);
    let token = this.choose(logits, position, 0);
    if (this.constraint && (token < 0 || !this.constraint.allows(token))) {
      this.constraint.mask(logits);
      token = this.choose(logits, position, 1);
    }
    if (token < 0)
      throw new Error(`no token can be chosen at position ${position}: every logit is masked or NaN`);
    this.take(token);
    return described ? describeToken(token, raw[token]!, described) : { token };
  }

  /** Frees what the grammar holds outside of JavaScript. */
  close(): void {
    this.constraint?.close();
  }

  private take(token: number): void {
    this.history.push(token);
    this.constraint?.accept(token);
  }

  private get modifies(): boolean {
    const { parameters } = this;
    return (
      this.constraint !== undefined ||
      parameters.logit_bias.length > 0 ||
      parameters.min_tokens > 0 ||
      parameters.repetition_penalty !== 1 ||
      parameters.frequency_penalty !== 0 ||
      parameters.presence_penalty !== 0
    );
  }

  /** A grammar that is complete allows nothing but the end, so there the end stays possible. */
  private forbidStop(logits: Float32Array): void {
    const kept = this.stopTokens.map((token) => logits[token]!);
    for (const token of this.stopTokens) logits[token] = Number.NEGATIVE_INFINITY;
    if (!this.constraint) return;
    const probe = logits.slice();
    this.constraint.mask(probe);
    if (argmax(probe) < 0)
      this.stopTokens.forEach((token, index) => {
        logits[token] = kept[index]!;
      });
  }

  private choose(logits: Float32Array, position: number, attempt: number): number {
    const { parameters, scratch } = this;
    if (parameters.temperature < greedyBelow) return argmax(logits);
    fillCandidates(scratch, logits, parameters.temperature, parameters.top_k);
    keepMinP(scratch, parameters.min_p);
    keepTypicalP(scratch, parameters.typical_p);
    keepTopP(scratch, parameters.top_p);
    if (scratch.count === 0) return -1;
    const { seed, choice } = parameters;
    return drawCandidate(scratch, uniform({ seed, position, choice, attempt }));
  }
}
