import type { SampledToken } from '../../../spec/engine-contract.ts';
import { Detokenizer, type DetokenizerOptions } from '../../text/output/detokenizer.ts';
import { StopStrings } from '../../text/output/stop-strings.ts';
import type { PieceSource } from '../../text/vocabulary.ts';

/** A token together with where its text stands in the answer, characters from its start. */
export interface PlacedToken {
  sampled: SampledToken;
  begin: number;
  end: number;
}

/** What one or more tokens added to an answer. */
export interface TextEvent {
  text: string;
  /** Tokens whose text is out now. */
  tokens: PlacedToken[];
  /** Every token that was taken. */
  token_ids: number[];
  finish?: 'stop' | 'length';
}

export interface TextStreamOptions extends DetokenizerOptions {
  stops: readonly string[];
  include_stop: boolean;
  /** Tokens that end the answer; they have no text. */
  stop_tokens: ReadonlySet<number>;
  /** Stop strings count only after this many tokens. */
  min_tokens: number;
}

/**
 * Tokens of one answer to text: detokenized, cut at stop strings, with the text of each token placed. What
 * is out is a function of the tokens alone, so an answer that is continued elsewhere goes on at the letter.
 */
export class TextStream {
  /** Tokens taken, stop tokens included. */
  taken = 0;
  readonly #options: TextStreamOptions;
  readonly #detokenizer: Detokenizer;
  readonly #stops: StopStrings;
  #waiting: PlacedToken[] = [];
  #decoded = 0;
  #released = 0;

  constructor(pieces: PieceSource, options: TextStreamOptions) {
    this.#options = options;
    this.#detokenizer = new Detokenizer(pieces, options);
    this.#stops = new StopStrings(options.stops, options.include_stop);
  }

  /** @param last whether the engine ended the answer with this token, having reached its limit */
  take(sampled: SampledToken, last: boolean): TextEvent {
    this.taken++;
    const event: TextEvent = { text: '', tokens: [], token_ids: [sampled.token] };
    if (this.#options.stop_tokens.has(sampled.token)) {
      this.#finish(event, 'stop');
      return event;
    }
    const piece = this.#detokenizer.push(sampled.token);
    this.#waiting.push({ sampled, begin: this.#decoded, end: this.#decoded + piece.length });
    this.#append(event, piece);
    if (event.finish === undefined && last) this.#finish(event, 'length');
    return event;
  }

  /** Tokens at the end whose log probabilities are not out yet. */
  get withheld(): number {
    return this.#waiting.length;
  }

  /** Supplies the log probability of the first withheld token that has none: an answer was continued behind it. */
  describe(sampled: SampledToken): void {
    const waiting = this.#waiting.find(({ sampled: { logprob } }) => logprob === undefined);
    if (waiting) waiting.sampled = sampled;
  }

  /** Ends an answer without a further token. */
  end(): TextEvent {
    const event: TextEvent = { text: '', tokens: [], token_ids: [] };
    this.#finish(event, 'length');
    return event;
  }

  #append(event: TextEvent, piece: string): void {
    this.#decoded += piece.length;
    const early = this.taken < this.#options.min_tokens;
    const { text, stopped } = early ? { text: piece, stopped: undefined } : this.#stops.push(piece);
    event.text += text;
    this.#released += text.length;
    if (stopped !== undefined) {
      event.finish = 'stop';
      event.tokens.push(...this.#waiting.filter(({ begin }) => begin < this.#released));
      this.#waiting = [];
      return;
    }
    while (this.#waiting.length > 0 && this.#waiting[0]!.end <= this.#released)
      event.tokens.push(this.#waiting.shift()!);
  }

  #finish(event: TextEvent, reason: 'stop' | 'length'): void {
    this.#append(event, this.#detokenizer.end());
    if (event.finish !== undefined) return;
    event.text += this.#stops.end();
    event.tokens.push(...this.#waiting);
    this.#waiting = [];
    event.finish = reason;
  }
}

/** Two events in a row as one. */
export function mergeEvents(first: TextEvent | undefined, second: TextEvent): TextEvent {
  if (!first) return second;
  const merged: TextEvent = {
    text: first.text + second.text,
    tokens: [...first.tokens, ...second.tokens],
    token_ids: [...first.token_ids, ...second.token_ids],
  };
  if (second.finish !== undefined) merged.finish = second.finish;
  return merged;
}
