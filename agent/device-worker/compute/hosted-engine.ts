import { Grammar } from '../../../native/grammar.ts';
import { Vocabulary } from '../../../native/vocabulary.ts';
import type { Engine, IterationPlan, SequenceRequest } from '../../../spec/engine-contract.ts';
import { ReasoningMeter } from '../../text/output/reasoning-meter.ts';
import { allocateCandidates, type Candidates } from '../../text/sampling/candidates.ts';
import type { SamplingParameters } from '../../text/sampling/parameters.ts';
import { ReasoningBudget, type ReasoningLimit } from '../../text/sampling/reasoning-budget.ts';
import { DelayedConstraint, type TokenConstraint } from '../../text/sampling/token-constraint.ts';
import { TokenSampler } from '../../text/sampling/token-sampler.ts';
import { Utf8Constraint, type Utf8Tokens } from '../../text/sampling/utf8-constraint.ts';
import { CachedPieces } from '../../text/vocabulary.ts';
import type { GrammarConstraint, Submission, TokenOutput } from './messages.ts';

/** An engine of the compute thread, with what its sequences need besides: vocabulary, samplers, grammars. */
export class HostedEngine {
  readonly name: string;
  readonly engine: Engine;
  readonly #vocabulary: Vocabulary;
  readonly #pieces: CachedPieces;
  readonly #scratch: Candidates;
  readonly #utf8: Utf8Tokens;
  readonly #samplers = new Map<number, TokenSampler>();
  /** Whose transfers read or write its rows. */
  #guests = 0;
  #closed = false;

  constructor(name: string, engine: Engine, vocabularyAddress: bigint, utf8: Utf8Tokens) {
    this.#utf8 = utf8;
    this.name = name;
    this.engine = engine;
    this.#vocabulary = Vocabulary.fromAddress(vocabularyAddress);
    this.#pieces = new CachedPieces(this.#vocabulary);
    this.#scratch = allocateCandidates(engine.info.n_vocab);
  }

  /**
   * @throws HpcserveError E_ENGINE_SEQUENCE, E_NATIVE_GRAMMAR, E_REQUEST_INVALID: the request's fault, nothing stays
   * behind
   */
  add(submission: Submission): void {
    const { id, tokens, sampling, max_new_tokens, cache_scope, prompt_logprobs } = submission;
    const stop_tokens = new Set(submission.stop_tokens);
    const sampler = sampling && this.#sampler(submission, sampling, stop_tokens);
    try {
      const request: SequenceRequest = { id, prompt_tokens: tokens, max_new_tokens, stop_tokens };
      if (sampler) request.sampler = sampler;
      if (cache_scope !== undefined) request.cache_scope = cache_scope;
      if (prompt_logprobs !== undefined) request.prompt_logprobs = prompt_logprobs;
      this.engine.add(request);
    } catch (error) {
      sampler?.close();
      throw error;
    }
    if (sampler) this.#samplers.set(id, sampler);
  }

  cancel(id: number): void {
    this.engine.cancel(id);
    this.#release(id);
  }

  step(plan?: IterationPlan): ReturnType<Engine['step']> & { outputs: TokenOutput[] } {
    const report = this.engine.step(plan);
    for (const { id, finish } of report.outputs) if (finish !== undefined) this.#release(id);
    return report;
  }

  /** It serves nobody any more, though its memory may still be its own. */
  get closed(): boolean {
    return this.#closed;
  }

  /** Its rows are read or written by a transfer: they stay where they are until the result is called. */
  enter(): () => void {
    this.#guests++;
    return () => {
      this.#guests--;
      if (this.#closed && this.#guests === 0) this.engine.close();
    };
  }

  /** Closes the engine, as soon as no transfer uses its memory. */
  close(): void {
    for (const sampler of this.#samplers.values()) sampler.close();
    this.#samplers.clear();
    this.#closed = true;
    if (this.#guests === 0) this.engine.close();
  }

  #release(id: number): void {
    this.#samplers.get(id)?.close();
    this.#samplers.delete(id);
  }

  #sampler(
    { tokens, n_prompt, grammar, forced, reasoning_limit }: Submission,
    sampling: SamplingParameters,
    stop_tokens: ReadonlySet<number>,
  ): TokenSampler {
    const constraint = grammar && this.#constraint(grammar);
    const start = {
      prompt: tokens.subarray(0, n_prompt),
      continued: tokens.subarray(n_prompt),
      stop_tokens: this.#masked(stop_tokens),
      ...(forced && { forced }),
    };
    try {
      return new TokenSampler(
        sampling,
        start,
        this.#scratch,
        constraint,
        reasoning_limit && this.#budget(reasoning_limit),
      );
    } catch (error) {
      // The tokens of a continued answer do not follow its grammar.
      constraint?.close();
      throw error;
    }
  }

  #budget(limit: ReasoningLimit): ReasoningBudget {
    const meter = new ReasoningMeter(limit.opened, (token) => this.#pieces.piece(token, true));
    return new ReasoningBudget(limit, meter);
  }

  /** Stop tokens that logits exist for. */
  #masked(stop_tokens: ReadonlySet<number>): number[] {
    return [...stop_tokens].filter((token) => token >= 0 && token < this.engine.info.n_vocab);
  }

  #constraint({ gbnf, after }: GrammarConstraint): TokenConstraint {
    const grammar = Grammar.parse(this.#vocabulary, gbnf);
    const bytesOf = (token: number) => this.#pieces.piece(token, true);
    const constraint = new Utf8Constraint(
      {
        allows: (token) => grammar.allows(token),
        mask: (logits) => grammar.apply(logits),
        accept: (token) => grammar.accept(token),
        close: () => grammar.close(),
      },
      bytesOf,
      this.#utf8,
    );
    return after === undefined ? constraint : new DelayedConstraint(constraint, after, bytesOf);
  }
}
