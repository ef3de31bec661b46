/** What may come next in one sequence, beyond probability: a grammar. Owned by the sampler that uses it. */
export interface TokenConstraint {
  allows(token: number): boolean;
  /** Sets the logits of all tokens that may not come next to −∞. @param logits shape [n_vocab] */
  mask(logits: Float32Array): void;
  /** Moves on by a token that is allowed. */
  accept(token: number): void;
  close(): void;
}

/**
 * A constraint that begins once a text has appeared: the grammar of an answer starts after the model has
 * closed its reasoning.
 */
export class DelayedConstraint implements TokenConstraint {
  readonly #inner: TokenConstraint;
  readonly #trigger: Buffer;
  readonly #bytesOf: (token: number) => Uint8Array;
  #tail: Buffer = Buffer.alloc(0);
  #active = false;

  constructor(inner: TokenConstraint, trigger: string, bytesOf: (token: number) => Uint8Array) {
    this.#inner = inner;
    this.#trigger = Buffer.from(trigger);
    this.#bytesOf = bytesOf;
  }

  allows(token: number): boolean {
    return !this.#active || this.#inner.allows(token);
  }

  mask(logits: Float32Array): void {
    if (this.#active) this.#inner.mask(logits);
  }

  accept(token: number): void {
    if (this.#active) {
      this.#inner.accept(token);
      return;
    }
    const seen = Buffer.concat([this.#tail, this.#bytesOf(token)]);
    if (seen.includes(this.#trigger)) this.#active = true;
    this.#tail = seen.subarray(Math.max(0, seen.length - this.#trigger.length + 1));
  }

  close(): void {
    this.#inner.close();
  }
}
