/** What a request says of strings that end its answer. */
export interface StopRules {
  strings: readonly string[];
  /** Whether the client gets the string itself. */
  included: boolean;
  /** They count only behind so many further tokens. */
  behind: number;
}

/**
 * Sees stop strings that began before a stream moved and end behind that: an engine that goes on looks for them only in
 * what it says itself. What it has not said of its tokens, since it might have been the beginning of such a string,
 * comes first. Where a string is found here, the engine does not know and goes on for nothing until its limit; the
 * tokens that it had computed until then count, which may be a few more than in an answer that does not move.
 */
export class StopBoundary {
  readonly #stops: StopRules;
  /** Length of the longest, less one: from so far back one may reach over the boundary. */
  readonly #reach: number;
  /** The end of the text before the boundary; the last characters of it are still to be sent. */
  readonly #tail: string;
  #pending: number;
  #after = '';
  #open: boolean;

  /**
   * @param text what the tokens before the boundary spell
   * @param pending the end of it, which the client does not have
   */
  constructor(stops: StopRules, text: string, pending: string) {
    this.#stops = stops;
    this.#reach = Math.max(0, ...stops.strings.map(({ length }) => length - 1));
    const length = Math.max(this.#reach, pending.length);
    this.#tail = length === 0 ? '' : text.slice(-length);
    this.#pending = pending.length;
    this.#open = length > 0;
  }

  /**
   * What of a text, and of what is pending, may be sent now.
   * @param last nothing follows
   * @param tokens since the boundary
   */
  next(text: string, last: boolean, tokens: number): { text: string; stopped?: string } {
    if (!this.#open) return { text };
    this.#after += text;
    const whole = this.#tail + this.#after;
    const sent = this.#tail.length - this.#pending;
    const found = tokens > this.#stops.behind ? this.#find(whole) : undefined;
    if (found) {
      this.#open = false;
      const end = this.#stops.included ? found.at + found.string.length : found.at;
      return { text: whole.slice(sent, Math.max(sent, end)), stopped: found.string };
    }
    if (this.#after.length < this.#reach && !last) return { text: '' };
    this.#open = false;
    return { text: whole.slice(sent) };
  }

  /** The first that reaches over the boundary. */
  #find(whole: string): { at: number; string: string } | undefined {
    const boundary = this.#tail.length;
    let first: { at: number; string: string } | undefined;
    for (const string of this.#stops.strings) {
      const at = whole.indexOf(string, Math.max(0, boundary - string.length + 1));
      if (at !== -1 && at < boundary && (!first || at < first.at)) first = { at, string };
    }
    return first;
  }
}
