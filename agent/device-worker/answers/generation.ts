import type { SampledToken } from '../../../spec/engine-contract.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import type { GrammarConstraint, TokenOutput } from '../compute/messages.ts';
import type { Models } from '../models.ts';
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
  sequence?: number;
  done: boolean;
}

/** The sequences behind one request: `n` answers to each prompt. */
export class Generation {
  cached_tokens = 0;
  private readonly models: Models;
  private readonly request: GenerationRequest;
  private readonly listener: GenerationListener;
  private readonly choices: Choice[];
  private readonly stopTokens: ReadonlySet<number>;
  private admitted = 0;
  private ended = false;

  constructor(models: Models, request: GenerationRequest, listener: GenerationListener) {
    this.models = models;
    this.request = request;
    this.listener = listener;
    const { model, parameters } = request;
    const text = model.text!;
    const end = parameters.ignore_eos ? [] : text.vocabulary.endTokens;
    this.stopTokens = new Set([...end, ...parameters.stop_token_ids]);
    this.choices = request.prompts.flatMap((_, prompt) =>
      Array.from({ length: parameters.n }, (_, answer) => ({
        index: prompt * parameters.n + answer,
        prompt,
        text: new TextStream(text.pieces, {
          special: !parameters.skip_special_tokens,
          preserved: text.preserved,
          stops: parameters.stop,
          include_stop: parameters.include_stop,
          stop_tokens: this.stopTokens,
          min_tokens: parameters.sampling.min_tokens,
        }),
        done: false,
      })),
    );
  }

  get prompt_tokens(): number {
    return this.request.prompts.reduce((sum, prompt) => sum + prompt.length, 0);
  }

  get completion_tokens(): number {
    return this.choices.reduce((sum, { text }) => sum + text.taken, 0);
  }

  /** @param replayed is called with what the continued tokens had already said */
  start(replayed?: (event: TextEvent) => void): void {
    const continued = this.request.parameters.continued?.token_ids ?? [];
    if (continued.length > 0) {
      const choice = this.choices[0]!;
      for (const token of continued) {
        const event = choice.text.take({ token }, false);
        replayed?.(event);
        if (event.finish !== undefined) {
          this.endAtOnce(choice, event.finish);
          return;
        }
      }
      if (continued.length >= this.request.max_tokens[0]!) {
        this.endAtOnce(choice, 'length');
        return;
      }
    }
    // The other answers to a prompt start once its keys and values are there, and share them.
    for (const choice of this.choices)
      if (choice.index % this.request.parameters.n === 0) this.submit(choice);
  }

  cancel(): void {
    this.ended = true;
    for (const choice of this.choices) this.drop(choice);
  }

  /** Nothing is left to generate: the answer, whose text is out already, was complete when it was handed over. */
  private endAtOnce(choice: Choice, finish: 'stop' | 'length'): void {
    choice.done = true;
    const event: TextEvent = { text: '', tokens: [], token_ids: [], finish };
    this.listener.admitted();
    this.listener.event(choice.index, event);
    this.listener.finished();
  }

  private submit(choice: Choice): void {
    const { request } = this;
    const { parameters, model } = request;
    const prompt = request.prompts[choice.prompt]!;
    const continued = parameters.continued?.token_ids ?? [];
    const tokens = new Int32Array(prompt.length + continued.length);
    tokens.set(prompt);
    tokens.set(continued, prompt.length);
    choice.sequence = this.models.submit(
      {
        model: model.config.name,
        tokens,
        n_prompt: prompt.length,
        sampling: {
          ...parameters.sampling,
          // Counted within a prompt, so that prompts sent together are answered as if sent alone.
          choice: choice.index % parameters.n,
          ...(request.logprobs !== undefined && { logprobs: request.logprobs }),
        },
        ...(request.grammar && { grammar: request.grammar }),
        max_new_tokens: request.max_tokens[choice.prompt]! - continued.length,
        stop_tokens: [...this.stopTokens],
        ...(request.prompt_logprobs !== undefined && { prompt_logprobs: request.prompt_logprobs }),
      },
      {
        admitted: () => this.takeAdmission(),
        output: (output) => this.take(choice, output),
        failed: (error) => this.fail(error),
      },
    );
  }

  private takeAdmission(): void {
    this.admitted++;
    if (this.admitted === this.request.prompts.length) this.listener.admitted();
  }

  private take(choice: Choice, output: TokenOutput): void {
    if (this.ended || choice.done) return;
    if (output.error !== undefined || output.finish === 'error') {
      this.fail(
        new HpcserveError('E_WORKER_COMPUTE', {
          what: 'The answer could not be computed',
          because: output.error ?? 'the engine gave no reason',
        }),
      );
      return;
    }
    if (output.finish === 'cancelled') {
      this.fail(new HpcserveError('E_WORKER_COMPUTE', { what: 'The answer was cancelled by the worker' }));
      return;
    }
    this.cached_tokens += output.cached_tokens ?? 0;
    if (output.prompt_logprobs) this.listener.prompt(choice.index, output.prompt_logprobs);
    if (output.token || output.finish !== undefined) this.startOthers(choice);
    if (output.token) {
      const event = choice.text.take(output.token, output.finish === 'length');
      if (event.finish !== undefined) this.drop(choice);
      this.listener.event(choice.index, event);
    } else if (output.finish !== undefined) {
      choice.done = true;
      this.listener.event(choice.index, choice.text.end());
    }
    if (this.choices.every(({ done }) => done)) {
      this.ended = true;
      this.listener.finished();
    }
  }

  private startOthers(first: Choice): void {
    if (first.index % this.request.parameters.n !== 0) return;
    for (const choice of this.choices)
      if (choice.prompt === first.prompt && choice.sequence === undefined) this.submit(choice);
  }

  private fail(error: HpcserveError): void {
    if (this.ended) return;
    this.cancel();
    this.listener.failed(error);
  }

  private drop(choice: Choice): void {
    choice.done = true;
    if (choice.sequence !== undefined) this.models.cancel(choice.sequence);
  }
}
