import type { PieceSource } from '../vocabulary.ts';

export interface DetokenizerOptions {
  /** Write control tokens as their text; they have none otherwise. */
  special: boolean;
  /** Control tokens that are written nonetheless, because tool calls or reasoning are recognised by them. */
  preserved?: ReadonlySet<number>;
}

/**
 * Tokens to text, one at a time. Bytes of a character that is not complete yet are held until it is;
 * bytes that never become a character come out as U+FFFD, as in llama.cpp and vLLM.
 */
export class Detokenizer {
  readonly #pieces: PieceSource;
  readonly #options: DetokenizerOptions;
  readonly #decoder = new TextDecoder('utf-8', { fatal: false, ignoreBOM: true });

  constructor(pieces: PieceSource, options: DetokenizerOptions) {
    this.#pieces = pieces;
    this.#options = options;
  }

  /** @returns the characters that the token completes. */
  push(token: number): string {
    const special = this.#options.special || this.#options.preserved?.has(token) === true;
    return this.#decoder.decode(this.#pieces.piece(token, special), { stream: true });
  }

  /** @returns what stands for bytes that stayed incomplete. */
  end(): string {
    return this.#decoder.decode();
  }
}
