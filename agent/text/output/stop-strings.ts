export interface StopResult {
  /** Text that can no longer become a part of a stop string. */
  text: string;
  /** The stop string that ended the text, if one did. */
  stopped?: string;
}

/**
 * Ends a text at the first stop string, also where tokens split it: an end of the text that could be the
 * beginning of a stop string is withheld until it is disproved. What came out depends on the text alone,
 * never on how it was cut into pieces.
 */
export class StopStrings {
  readonly #stops: readonly string[];
  readonly #include: boolean;
  #held = '';

  /** @param include leave the stop string itself in the text (vLLM's `include_stop_str_in_output`). */
  constructor(stops: readonly string[], include = false) {
    this.#stops = stops;
    this.#include = include;
  }

  push(piece: string): StopResult {
    if (this.#stops.length === 0) return { text: piece };
    const text = this.#held + piece;
    const found = this.#earliest(text);
    if (found) {
      this.#held = '';
      return { text: text.slice(0, found.at + (this.#include ? found.stop.length : 0)), stopped: found.stop };
    }
    const keep = longestOverlap(text, this.#stops);
    this.#held = keep > 0 ? text.slice(-keep) : '';
    return { text: keep > 0 ? text.slice(0, -keep) : text };
  }

  /** The withheld rest, once nothing can follow. */
  end(): string {
    const rest = this.#held;
    this.#held = '';
    return rest;
  }

  /** The stop string that is complete first, of several the one that begins first. */
  #earliest(text: string): { at: number; stop: string } | undefined {
    let best: { at: number; stop: string } | undefined;
    for (const stop of this.#stops) {
      const at = text.indexOf(stop);
      if (at < 0) continue;
      const end = at + stop.length;
      const bestEnd = best === undefined ? Number.POSITIVE_INFINITY : best.at + best.stop.length;
      if (end < bestEnd || (end === bestEnd && at < best!.at)) best = { at, stop };
    }
    return best;
  }
}

/** Length of the longest end of `text` that is a proper beginning of one of the words. */
export function longestOverlap(text: string, words: readonly string[]): number {
  let longest = 0;
  for (const word of words) {
    for (let length = Math.min(word.length - 1, text.length); length > longest; length--) {
      if (text.endsWith(word.slice(0, length))) {
        longest = length;
        break;
      }
    }
  }
  return longest;
}
