import type { TokenConstraint } from './token-constraint.ts';

/**
 * Keeps the bytes of a constrained answer valid UTF-8 (RFC 3629). libllama's grammar decodes leniently: it
 * takes overlong forms, surrogates and bytes that never occur for characters, which the text then shows as
 * U+FFFD, so that a quote or a length would not be what the grammar believes. Vocabularies with a token for
 * each byte make this possible.
 */
export class Utf8Constraint implements TokenConstraint {
  readonly #inner: TokenConstraint;
  readonly #bytesOf: (token: number) => Uint8Array;
  readonly #tokens: Utf8Tokens;
  /** Bytes of a character that is not complete. */
  #pending: number[] = [];

  /** @param tokens from `classifyTokens`, shared by all constraints of a vocabulary */
  constructor(inner: TokenConstraint, bytesOf: (token: number) => Uint8Array, tokens: Utf8Tokens) {
    this.#inner = inner;
    this.#bytesOf = bytesOf;
    this.#tokens = tokens;
  }

  allows(token: number): boolean {
    return continueUtf8(this.#pending, this.#bytesOf(token)) !== undefined && this.#inner.allows(token);
  }

  mask(logits: Float32Array): void {
    this.#inner.mask(logits);
    for (const token of this.#tokens.impossible) logits[token] = Number.NEGATIVE_INFINITY;
    if (this.#pending.length === 0) {
      for (const token of this.#tokens.inside) logits[token] = Number.NEGATIVE_INFINITY;
      return;
    }
    // Inside of a character the grammar has left few tokens.
    for (let token = 0; token < logits.length; token++)
      if (
        logits[token] !== Number.NEGATIVE_INFINITY &&
        continueUtf8(this.#pending, this.#bytesOf(token)) === undefined
      )
        logits[token] = Number.NEGATIVE_INFINITY;
  }

  accept(token: number): void {
    this.#pending = continueUtf8(this.#pending, this.#bytesOf(token)) ?? [];
    this.#inner.accept(token);
  }

  close(): void {
    this.#inner.close();
  }
}

/** Tokens that cannot stand everywhere, as far as UTF-8 is concerned. */
export interface Utf8Tokens {
  /** No part of any valid text. */
  impossible: Int32Array;
  /** Begin inside of a character. */
  inside: Int32Array;
}

/** Sorts a vocabulary, token by token; plain data, so that one thread can do it for another. */
export function classifyTokens(n_tokens: number, bytesOf: (token: number) => Uint8Array): Utf8Tokens {
  const impossible: number[] = [];
  const inside: number[] = [];
  for (let token = 0; token < n_tokens; token++) {
    const bytes = bytesOf(token);
    // Nearly all tokens are plain ASCII, which needs no further look.
    if (bytes.every((byte) => byte < 0x80)) continue;
    let start = 0;
    while (start < 3 && start < bytes.length && isContinuation(bytes[start]!)) start++;
    if (continueUtf8([], bytes.subarray(start)) === undefined) impossible.push(token);
    else if (start > 0) inside.push(token);
  }
  return { impossible: Int32Array.from(impossible), inside: Int32Array.from(inside) };
}

/**
 * @param pending first bytes of a character
 * @returns the bytes of the character that is incomplete after `bytes`; undefined where they are not valid
 */
export function continueUtf8(pending: readonly number[], bytes: Uint8Array): number[] | undefined {
  let open = [...pending];
  for (const byte of bytes) {
    open.push(byte);
    const length = lengthOf(open[0]!);
    if (length === 0 || !fits(open)) return undefined;
    if (open.length === length) open = [];
  }
  return open;
}

function lengthOf(first: number): number {
  if (first < 0x80) return 1;
  if (first >= 0xc2 && first <= 0xdf) return 2;
  if (first >= 0xe0 && first <= 0xef) return 3;
  return first >= 0xf0 && first <= 0xf4 ? 4 : 0;
}

/** Whether the last of the bytes may follow those before it. */
function fits(open: readonly number[]): boolean {
  const last = open.at(-1)!;
  if (open.length === 1) return true;
  if (!isContinuation(last)) return false;
  if (open.length > 2) return true;
  switch (open[0]) {
    case 0xe0:
      return last >= 0xa0;
    case 0xed:
      return last <= 0x9f;
    case 0xf0:
      return last >= 0x90;
    case 0xf4:
      return last <= 0x8f;
    default:
      return true;
  }
}

function isContinuation(byte: number): boolean {
  return (byte & 0xc0) === 0x80;
}
