import { reasoningClose, reasoningOpen } from './reasoning.ts';
import { longestOverlap } from './stop-strings.ts';

/**
 * Follows the tokens of one answer through its reasoning, as `ReasoningSplitter` follows its text: a function of
 * the tokens alone, so an answer that is continued elsewhere stands where it stood.
 */
export class ReasoningMeter {
  /** Tokens of the reasoning so far, with the marks around it. */
  tokens = 0;
  /** Of these, tokens behind the mark that opens it. */
  inside = 0;
  #state: 'before' | 'reasoning' | 'over';
  /** Bytes that may be the beginning of a mark, one character each. */
  #held = '';
  readonly #bytesOf: (token: number) => Uint8Array;

  /** @param opened whether the prompt already ends with the mark that opens the reasoning */
  constructor(opened: boolean, bytesOf: (token: number) => Uint8Array) {
    this.#state = opened ? 'reasoning' : 'before';
    this.#bytesOf = bytesOf;
  }

  /** Whether the next token belongs to the reasoning. */
  get reasoning(): boolean {
    return this.#state === 'reasoning';
  }

  take(token: number): void {
    if (this.#state === 'over') return;
    this.tokens++;
    if (this.#state === 'reasoning') this.inside++;
    this.#held += Buffer.from(this.#bytesOf(token)).toString('latin1');
    if (this.#state === 'before') this.#lookForBegin();
    if (this.#state === 'reasoning') this.#lookForEnd();
  }

  #lookForBegin(): void {
    const text = this.#held.trimStart();
    if (text.startsWith(reasoningOpen)) {
      this.#state = 'reasoning';
      this.#held = text.slice(reasoningOpen.length);
    } else if (!reasoningOpen.startsWith(text)) {
      this.#state = 'over';
      this.tokens = 0;
    }
  }

  #lookForEnd(): void {
    if (this.#held.includes(reasoningClose)) this.#state = 'over';
    else this.#held = this.#held.slice(this.#held.length - longestOverlap(this.#held, [reasoningClose]));
  }
}
