/** What text handling needs to know of a model's vocabulary; `native/vocabulary.ts` has it from libllama. */
export interface PieceSource {
  /**
   * Bytes of a token; one token may hold a part of a character.
   * @param special whether control tokens give their text or nothing
   */
  piece(token: number, special?: boolean): Uint8Array;
}

/**
 * Pieces are asked for again and again; a call into libllama each time would cost more than the rest of the text path.
 */
export class CachedPieces implements PieceSource {
  readonly #source: PieceSource;
  readonly #plain = new Map<number, Uint8Array>();
  readonly #special = new Map<number, Uint8Array>();

  constructor(source: PieceSource) {
    this.#source = source;
  }

  piece(token: number, special = false): Uint8Array {
    const cache = special ? this.#special : this.#plain;
    let bytes = cache.get(token);
    if (bytes === undefined) {
      bytes = this.#source.piece(token, special);
      cache.set(token, bytes);
    }
    return bytes;
  }
}
