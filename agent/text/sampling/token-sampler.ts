import type { SampledToken, Sampler, StatelessSampling } from '../../../spec/engine-contract.ts';
import { type Candidates, drawCandidate, fillCandidates } from './candidates.ts';
import { argmax } from './greedy.ts';
import { describeToken, logProbabilities } from './log-probabilities.ts';
import { keepMinP } from './min-p.ts';
import { greedyBelow, type SamplingParameters } from './parameters.ts';
import { penalise, TokenHistory } from './penalties.ts';
import { uniform } from './philox.ts';
import type { ReasoningBudget } from './reasoning-budget.ts';
import { selectTop } from './select-top.ts';
import type { TokenConstraint } from './token-constraint.ts';
import { keepTopP } from './top-p.ts';
import { keepTypicalP } from './typical-p.ts';

export interface SequenceStart {
  /** The prompt alone, without tokens of an answer that is being continued. */
  prompt: Iterable<number>;
  /** Tokens of the answer that were already produced elsewhere. */
  continued: Iterable<number>;
  /**
   * Tokens that the next steps choose whatever is drawn: known already, and sampled again for their log probabilities.
   */
  forced?: Iterable<number>;
  /** Masked until `min_tokens` are reached. */
  stop_tokens: Iterable<number>;
}

/**
 * Tokens that a grammar may refuse before the whole vocabulary is masked. One question costs microseconds,
 * a mask over 128k tokens tenths of a second. Lower: masks earlier; higher: more questions first.
 */
const refusals_max = 64;

/**
 * Chooses tokens in the order of vLLM: bias and masks, penalties, temperature, top_k, min_p, typical_p,
 * top_p, draw. A grammar is asked about drawn tokens; one that it refuses is taken out, and the draw is
 * repeated with another random number. This is rejection sampling: it gives the distribution of masking
 * the candidates first. Only where it refuses again and again is the whole vocabulary masked.
 */
export class TokenSampler implements Sampler {
  readonly #parameters: SamplingParameters;
  readonly #history: TokenHistory;
  readonly #stopTokens: readonly number[];
  readonly #scratch: Candidates;
  readonly #constraint: TokenConstraint | undefined;
  readonly #budget: ReasoningBudget | undefined;
  readonly #forced: number[];

  /** @param scratch buffers for n_vocab tokens, shared by all samplers of the thread. */
  constructor(
    parameters: SamplingParameters,
    start: SequenceStart,
    scratch: Candidates,
    constraint?: TokenConstraint,
    budget?: ReasoningBudget,
  ) {
    this.#parameters = parameters;
    this.#scratch = scratch;
    this.#constraint = constraint;
    this.#budget = budget;
    this.#history = new TokenHistory(start.prompt);
    this.#stopTokens = [...start.stop_tokens];
    this.#forced = [...(start.forced ?? [])];
    for (const token of start.continued) this.#take(token);
  }

  get stateless(): StatelessSampling | undefined {
    if (this.#modifies || this.#budget || this.#forced.length > 0) return undefined;
    const { temperature, top_k, top_p, min_p, typical_p, seed, choice, logprobs } = this.#parameters;
    const stateless: StatelessSampling = { temperature, top_k, top_p, min_p, typical_p, seed, choice };
    if (logprobs !== undefined) stateless.logprobs = logprobs;
    return stateless;
  }

  take(token: number): void {
    this.#take(token);
  }

  sample(logits: Float32Array, position: number): SampledToken {
    const parameters = this.#parameters;
    const history = this.#history;
    const described =
      parameters.logprobs === undefined ? undefined : logProbabilities(logits, parameters.logprobs);
    // Kept aside only where they are asked for: modifying happens in place.
    const raw = described && this.#modifies ? logits.slice() : logits;
    for (const [token, bias] of parameters.logit_bias) logits[token] = logits[token]! + bias;
    const forbidden = history.output_tokens < parameters.min_tokens ? this.#forbidStop(logits) : undefined;
    penalise(logits, history, parameters);
    let token = this.#forced.shift() ?? this.#budget?.next ?? this.#choose(logits, position, 0);
    if (token < 0 && this.#constraint) {
      this.#constraint.mask(logits);
      token = this.#choose(logits, position, refusals_max);
      if (token < 0 && forbidden) {
        // The grammar is complete and allows nothing but the end, so min_tokens gives way.
        for (const [stop, logit] of forbidden) logits[stop] = logit;
        this.#constraint.mask(logits);
        token = this.#choose(logits, position, 2 * refusals_max);
      }
    }
    if (token < 0)
      throw new Error(`no token can be chosen at position ${position}: every logit is masked or NaN`);
    this.#take(token);
    return described ? describeToken(token, raw[token]!, described) : { token };
  }

  /** Frees what the grammar holds outside of JavaScript. */
  close(): void {
    this.#constraint?.close();
  }

  #take(token: number): void {
    this.#history.push(token);
    this.#constraint?.accept(token);
    this.#budget?.take(token);
  }

  get #modifies(): boolean {
    const parameters = this.#parameters;
    return (
      this.#constraint !== undefined ||
      parameters.logit_bias.length > 0 ||
      parameters.min_tokens > 0 ||
      parameters.repetition_penalty !== 1 ||
      parameters.frequency_penalty !== 0 ||
      parameters.presence_penalty !== 0
    );
  }

  /** @returns the stop tokens with the logits that they had. */
  #forbidStop(logits: Float32Array): [number, number][] {
    const kept = this.#stopTokens.map((token): [number, number] => [token, logits[token]!]);
    for (const token of this.#stopTokens) logits[token] = Number.NEGATIVE_INFINITY;
    return kept;
  }

  /**
   * @param attempt number of the first draw at this position
   * @returns an allowed token; −1 where none was found among the likeliest
   */
  #choose(logits: Float32Array, position: number, attempt: number): number {
    const parameters = this.#parameters;
    const scratch = this.#scratch;
    if (parameters.temperature < greedyBelow) return this.#chooseBest(logits);
    fillCandidates(scratch, logits, parameters.temperature, parameters.top_k);
    keepMinP(scratch, parameters.min_p);
    keepTypicalP(scratch, parameters.typical_p);
    keepTopP(scratch, parameters.top_p);
    const { seed, choice } = parameters;
    for (let refused = 0; refused < refusals_max; refused++) {
      const index = drawCandidate(scratch, uniform({ seed, position, choice, attempt: attempt + refused }));
      if (index < 0) return -1;
      const token = scratch.tokens[index]!;
      if (this.#constraint?.allows(token) !== false) return token;
      scratch.weights[index] = 0;
    }
    return -1;
  }

  #chooseBest(logits: Float32Array): number {
    const best = argmax(logits);
    if (best < 0 || this.#constraint?.allows(best) !== false) return best;
    for (const token of selectTop(logits, refusals_max).subarray(1)) {
      if (logits[token] === Number.NEGATIVE_INFINITY) return -1;
      if (this.#constraint.allows(token)) return token;
    }
    return -1;
  }
}
