import type { SampledToken } from '../../../spec/engine-contract.ts';
import { continuation } from '../../../spec/wire.ts';
import type { PieceSource } from '../../text/vocabulary.ts';
import {
  addCompletionLogprob,
  type CompletionLogprobs,
  joinCompletionLogprobs,
  noLogprobs,
} from './logprobs.ts';
import type { TextEvent } from './text-stream.ts';

export interface CompletionDelta {
  text: string;
  logprobs: CompletionLogprobs | null;
  token_ids: number[];
  finish?: string;
  empty: boolean;
}

export interface EchoedPrompt {
  text: string;
  tokens: ArrayLike<number>;
  /** The client has it already: the answer is continued. */
  sent: boolean;
}

/** One choice of a text completion as it grows. */
export class CompletionChoice {
  readonly index: number;
  readonly #pieces: PieceSource;
  readonly #logprobs: boolean;
  readonly #echo: EchoedPrompt | undefined;
  #text = '';
  readonly #all: CompletionLogprobs = noLogprobs();
  readonly #token_ids: number[] = [];
  #finishReason: string | null = null;
  /** The echoed prompt, until the first event takes it along. */
  #before: { text: string; logprobs: CompletionLogprobs } | undefined;

  constructor(index: number, pieces: PieceSource, logprobs: boolean, echo?: EchoedPrompt) {
    this.index = index;
    this.#pieces = pieces;
    this.#logprobs = logprobs;
    this.#echo = echo;
    if (echo && !echo.sent) this.#before = { text: echo.text, logprobs: noLogprobs() };
  }

  /** Log probabilities of the echoed prompt's tokens but the first. */
  takePrompt(logprobs: readonly SampledToken[]): void {
    if (!this.#before || !this.#echo) return;
    const entries = noLogprobs();
    let offset = 0;
    for (let index = 0; index < this.#echo.tokens.length; index++) {
      const token = this.#echo.tokens[index]!;
      addCompletionLogprob(entries, index === 0 ? { token } : logprobs[index - 1]!, offset, this.#pieces);
      offset += Buffer.from(this.#pieces.piece(token)).toString('utf8').length;
    }
    this.#before.logprobs = entries;
  }

  get token_ids(): readonly number[] {
    return this.#token_ids;
  }

  take(event: TextEvent): CompletionDelta {
    const entries = this.#before?.logprobs ?? noLogprobs();
    const text = (this.#before?.text ?? '') + event.text;
    this.#before = undefined;
    if (this.#logprobs) {
      const shift = this.#echo?.text.length ?? 0;
      for (const { sampled, begin } of event.tokens)
        addCompletionLogprob(entries, sampled, shift + begin, this.#pieces);
    }
    this.#text += text;
    joinCompletionLogprobs(this.#all, entries);
    this.#token_ids.push(...event.token_ids);
    if (event.finish !== undefined) this.#finishReason = event.finish;
    return {
      text,
      logprobs: this.#logprobs ? entries : null,
      token_ids: event.token_ids,
      empty: text === '' && entries.tokens.length === 0,
      ...(event.finish === undefined ? {} : { finish: event.finish }),
    };
  }

  complete(withTokenIds: boolean): Record<string, unknown> {
    return {
      index: this.index,
      text: this.#text,
      logprobs: this.#logprobs ? this.#all : null,
      finish_reason: this.#finishReason,
      ...(withTokenIds ? { [continuation.token_ids]: this.#token_ids } : {}),
    };
  }
}
