import { createHash } from 'node:crypto';
import type { SampledToken } from '../../../spec/engine-contract.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import { type ContinuedChoice, continuation } from '../../../spec/wire.ts';
import type { WorkerTimings } from '../../../spec/worker-timings.ts';
import { ReasoningMeter } from '../../text/output/reasoning-meter.ts';
import type { ReasoningLimit } from '../../text/sampling/reasoning-budget.ts';
import type { GrammarConstraint, TokenOutput } from '../compute/messages.ts';
import type { Models } from '../models.ts';
import { arrivalName } from '../moving/arrival-name.ts';
import { invalid } from '../requests/body-reader.ts';
import type { GenerationParameters } from '../requests/generation.ts';
import type { ServedModel } from '../served-model.ts';
import { type TextEvent, TextStream } from './text-stream.ts';

export interface GenerationRequest {
  model: ServedModel;
  parameters: GenerationParameters;
  /** One entry a prompt; each is answered `n` times. */
  prompts: readonly Int32Array[];
  /** Tokens of an answer at most, with those that are continued; one entry a prompt. */
  max_tokens: readonly number[];
  /** Alternatives to report for each token; absent: no log probabilities. */
  logprobs?: number;
  /** Alternatives to report for each prompt token (echo). */
  prompt_logprobs?: number;
  grammar?: GrammarConstraint;
  /** Absent: the model does not reason in marks. */
  reasoning?: {
    /** Whether the prompt already opens it. */
    opened: boolean;
    /** Absent: for as long as it likes. */
    limit?: ReasoningLimit;
  };
  cache_scope: string | undefined;
  /** Whoever asked can have it continued by another replica, from the tokens that there are. */
  movable: boolean;
  /** Whoever asked has it computed elsewhere where it has moved, streamed or not. */
  may_move: boolean;
  /** What its keys and values are called that came here before it, of one that was not begun. */
  arrived_kv: string | undefined;
  /** The time that the chat template was told, Unix ms. */
  rendered_ms?: number;
}

export interface GenerationListener {
  /** Every sequence that starts now was admitted: the answer may begin. */
  admitted(): void;
  prompt(choice: number, logprobs: SampledToken[]): void;
  event(choice: number, event: TextEvent): void;
  /** All choices have finished. */
  finished(): void;
  failed(error: HpcserveError): void;
}

interface Choice {
  index: number;
  prompt: number;
  text: TextStream;
  reasoning: ReasoningMeter | undefined;
  sequence?: number;
  done: boolean;
  /** Complete when it was handed over; only its last chunk is missing. */
  ending?: 'stop' | 'length';
  /** Tokens that the engine is to compute again for their log probabilities. */
  again: number;
}

/** Answers of this worker so far. */
let answers = 0;

/** The sequences behind one request: `n` answers to each prompt. */
export class Generation {
  cached_tokens = 0;
  readonly #models: Models;
  readonly #request: GenerationRequest;
  readonly #listener: GenerationListener;
  readonly #choices: Choice[];
  readonly #stopTokens: ReadonlySet<number>;
  readonly #answer = ++answers;
  readonly #arrived_ms = performance.now();
  #begun_ms: number | undefined;
  #firstToken_ms: number | undefined;
  #admitted = 0;
  /** The answer is under way: what it still needs is let in. */
  #begun = false;
  /** Sequences that are submitted first, one a prompt. */
  #leaders = 0;
  #ended = false;

  constructor(models: Models, request: GenerationRequest, listener: GenerationListener) {
    this.#models = models;
    this.#request = request;
    this.#listener = listener;
    const { model, parameters } = request;
    const text = model.text!;
    const end = parameters.ignore_eos ? [] : text.vocabulary.endTokens;
    this.#stopTokens = new Set([...end, ...parameters.stop_token_ids]);
    this.#choices = request.prompts.flatMap((_, prompt) =>
      Array.from({ length: parameters.n }, (_, answer) => ({
        index: prompt * parameters.n + answer,
        prompt,
        text: new TextStream(text.pieces, {
          special: !parameters.skip_special_tokens,
          preserved: text.preserved,
          stops: parameters.stop,
          include_stop: parameters.include_stop,
          stop_tokens: this.#stopTokens,
          min_tokens: parameters.sampling.min_tokens,
        }),
        reasoning:
          request.reasoning &&
          new ReasoningMeter(request.reasoning.opened, (token) => text.pieces.piece(token, true)),
        done: false,
        again: 0,
      })),
    );
    const { continued } = parameters;
    if (continued && continued.choices.length !== this.#choices.length)
      invalid(
        continuation.continue,
        `must continue ${this.#choices.length} choices, not ${continued.choices.length}`,
      );
    if (continued?.prompt_digest !== undefined && continued.prompt_digest !== this.prompt_digest)
      invalid(continuation.continue, 'belongs to another prompt: its digest differs');
    this.cached_tokens = continued?.cached_tokens ?? 0;
  }

  /** Where the time went until now. */
  get timings(): WorkerTimings {
    const [arrived_ms, begun_ms, first_ms] = [this.#arrived_ms, this.#begun_ms, this.#firstToken_ms];
    const timings: WorkerTimings = {};
    if (begun_ms === undefined) return timings;
    timings.queue = begun_ms - arrived_ms;
    if (first_ms === undefined) return timings;
    timings.prefill = first_ms - begun_ms;
    timings.decode = performance.now() - first_ms;
    return timings;
  }

  /** Names the prompt's tokens; another tokenizer, template or date gives another digest. */
  get prompt_digest(): string {
    const hash = createHash('sha256');
    for (const { buffer, byteOffset, byteLength, length } of this.#request.prompts)
      hash.update(`${length} `).update(new Uint8Array(buffer, byteOffset, byteLength));
    return hash.digest('hex').slice(0, 32);
  }

  get prompt_tokens(): number {
    return this.#request.prompts.reduce((sum, prompt) => sum + prompt.length, 0);
  }

  get completion_tokens(): number {
    return this.#choices.reduce((sum, { text }) => sum + text.taken, 0);
  }

  /** Of these, tokens with which the model reasoned; absent where it does not do so in marks. */
  get reasoning_tokens(): number | undefined {
    if (!this.#request.reasoning) return undefined;
    return this.#choices.reduce((sum, { reasoning }) => sum + (reasoning?.tokens ?? 0), 0);
  }

  /** Tokens of a choice, at its end, whose log probabilities the client does not have. */
  withheld(choice: number): number {
    return this.#request.logprobs === undefined ? 0 : this.#choices[choice]!.text.withheld;
  }

  /** @param replayed is called with what the continued tokens had already said */
  start(replayed?: (choice: number, event: TextEvent) => void): void {
    const { continued } = this.#request.parameters;
    for (const choice of this.#choices) {
      const before = continued?.choices[choice.index];
      if (before) this.#replay(choice, before, replayed);
    }
    // The other answers to a prompt start once its keys and values are there, and share them.
    const leaders = this.#request.prompts.flatMap(
      (_, prompt) => this.#choices.find((choice) => choice.prompt === prompt && open(choice)) ?? [],
    );
    this.#leaders = leaders.length;
    if (this.#leaders === 0) this.#begin();
    for (const leader of leaders) this.#submit(leader);
  }

  /** Brings the text of a choice to where another replica left it. */
  #replay(
    choice: Choice,
    { token_ids, finished, withheld }: Required<ContinuedChoice>,
    replayed?: (choice: number, event: TextEvent) => void,
  ): void {
    const most = this.#request.max_tokens[choice.prompt]!;
    for (const [index, token] of token_ids.entries()) {
      choice.reasoning?.take(token);
      const event = choice.text.take({ token }, index + 1 >= most);
      replayed?.(choice.index, event);
      if (event.finish === undefined) continue;
      choice.ending = event.finish;
      break;
    }
    if (most === 0) choice.ending = 'length';
    if (finished) choice.done = true;
    else if (choice.ending === undefined && this.#request.logprobs !== undefined)
      choice.again = Math.min(withheld, choice.text.withheld);
  }

  cancel(): void {
    this.#ended = true;
    for (const choice of this.#choices) this.#drop(choice);
  }

  /** The answer may begin; choices that were complete when they were handed over end now. */
  #begin(): void {
    this.#begun = true;
    this.#begun_ms = performance.now();
    this.#listener.admitted();
    for (const choice of this.#choices) {
      if (choice.done || choice.ending === undefined) continue;
      choice.done = true;
      this.#listener.event(choice.index, { text: '', tokens: [], token_ids: [], finish: choice.ending });
    }
    this.#endIfDone();
  }

  #submit(choice: Choice): void {
    const request = this.#request;
    const { parameters, model } = request;
    const prompt = request.prompts[choice.prompt]!;
    const before = parameters.continued?.choices[choice.index]?.token_ids ?? [];
    const known = before.slice(0, before.length - choice.again);
    const tokens = new Int32Array(prompt.length + known.length);
    tokens.set(prompt);
    tokens.set(known, prompt.length);
    choice.sequence = this.#models.submit(
      {
        model: model.config.name,
        tokens,
        n_prompt: prompt.length,
        ...(choice.again > 0 && { forced: before.slice(known.length) }),
        sampling: {
          ...parameters.sampling,
          // Counted within a prompt, so that prompts sent together are answered as if sent alone.
          choice: choice.index % parameters.n,
          ...(request.logprobs !== undefined && { logprobs: request.logprobs }),
        },
        ...(request.grammar && { grammar: request.grammar }),
        reasoning: request.reasoning !== undefined,
        certain: this.#begun || parameters.continued !== undefined || request.arrived_kv !== undefined,
        // Once is enough: a stream that moved stays where it is.
        movable: request.movable && parameters.continued === undefined,
        continuable: request.movable,
        handover: this.#mayBeHandedOver,
        answer: this.#answer,
        choice: choice.index,
        kv: this.#arrivalOf(choice),
        ...(request.reasoning?.limit && { reasoning_limit: request.reasoning.limit }),
        max_new_tokens: request.max_tokens[choice.prompt]! - known.length,
        stop_tokens: [...this.#stopTokens],
        ...(request.cache_scope !== undefined && { cache_scope: request.cache_scope }),
        ...(request.prompt_logprobs !== undefined && { prompt_logprobs: request.prompt_logprobs }),
      },
      {
        admitted: () => this.#takeAdmission(),
        output: (output) => this.#take(choice, output),
        failed: (error) => this.#fail(error),
      },
    );
  }

  /** What the rows of a choice are called that came here before it. */
  #arrivalOf({ index }: Choice): string | undefined {
    const kv = this.#request.parameters.continued?.kv ?? this.#request.arrived_kv;
    return kv === undefined ? undefined : arrivalName(kv, index);
  }

  /** Choices share the KV of their prompt where they are computed together; rows of all of a prompt are not shared. */
  get #mayBeHandedOver(): boolean {
    return (
      this.#request.may_move && this.#choices.length === 1 && this.#request.prompt_logprobs === undefined
    );
  }

  #takeAdmission(): void {
    this.#admitted++;
    if (this.#admitted === this.#leaders) this.#begin();
  }

  #take(choice: Choice, output: TokenOutput): void {
    if (this.#ended || choice.done) return;
    if (output.error !== undefined || output.finish === 'error') {
      this.#fail(
        new HpcserveError('E_WORKER_COMPUTE', {
          what: 'The answer could not be computed',
          because: output.error ?? 'the engine gave no reason',
        }),
      );
      return;
    }
    if (output.finish === 'cancelled') {
      this.#fail(new HpcserveError('E_WORKER_COMPUTE', { what: 'The answer was cancelled by the worker' }));
      return;
    }
    // What was brought for it was computed for it.
    if (this.#request.parameters.continued?.cached_tokens === undefined && !this.#request.arrived_kv)
      this.cached_tokens += output.cached_tokens ?? 0;
    if (output.prompt_logprobs) this.#listener.prompt(choice.index, output.prompt_logprobs);
    if (output.token || output.finish !== undefined) this.#startOthers(choice);
    if (output.token) this.#firstToken_ms ??= performance.now();
    if (output.token && choice.again > 0) {
      choice.again--;
      choice.text.describe(output.token);
      if (output.finish === undefined) return;
      choice.done = true;
      this.#listener.event(choice.index, choice.text.end());
      this.#endIfDone();
      return;
    }
    if (output.token) {
      choice.reasoning?.take(output.token.token);
      const event = choice.text.take(output.token, output.finish === 'length');
      if (event.finish !== undefined) this.#drop(choice);
      this.#listener.event(choice.index, event);
    } else if (output.finish !== undefined) {
      choice.done = true;
      this.#listener.event(choice.index, choice.text.end());
    }
    this.#endIfDone();
  }

  #endIfDone(): void {
    if (!this.#choices.every(({ done }) => done)) return;
    this.#ended = true;
    this.#listener.finished();
  }

  #startOthers(first: Choice): void {
    for (const choice of this.#choices)
      if (choice.prompt === first.prompt && choice.sequence === undefined && open(choice))
        this.#submit(choice);
  }

  #fail(error: HpcserveError): void {
    if (this.#ended) return;
    this.cancel();
    this.#listener.failed(error);
  }

  #drop(choice: Choice): void {
    choice.done = true;
    if (choice.sequence !== undefined) this.#models.cancel(choice.sequence);
  }
}

/** Whether something of it is left to generate. */
function open({ done, ending }: Choice): boolean {
  return !done && ending === undefined;
}
