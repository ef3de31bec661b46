/** Gaps remembered. Lower: it follows changes of load sooner; higher: rare long gaps are known longer. */
const gaps_max = 512;
/** Below so many nothing is said of what is usual. */
const gaps_min = 20;

/**
 * How the tokens of an engine come, over all of its streams that have begun: the gaps in which none of them got one.
 * Batches give all streams a token at once, so these gaps are those of the engine, however many streams there are.
 */
export class AnswerPace {
  readonly #streams = new Set<() => boolean>();
  readonly #gaps_ms: number[] = [];
  #at = 0;
  #last_ms: number | undefined;

  /**
   * A stream gave its first token.
   * @param isHeld whether what has come waits for the client, so that the engine cannot be blamed
   * @returns what to call for each further part, and for its end
   */
  join(isHeld: () => boolean, now_ms: number): { arrived(now_ms: number): void; leave(): void } {
    this.#streams.add(isHeld);
    this.#note(now_ms);
    return {
      arrived: (then_ms) => this.#note(then_ms),
      leave: () => {
        this.#streams.delete(isHeld);
        if (this.#streams.size === 0) this.#last_ms = undefined;
      },
    };
  }

  /** Streams that have given a token. */
  get begun(): number {
    return this.#streams.size;
  }

  /** Of these, such as whose clients take what comes. */
  get flowing(): number {
    let count = 0;
    for (const isHeld of this.#streams) if (!isHeld()) count++;
    return count;
  }

  /** Of a hundred gaps one is longer, ms; undefined where too few were seen. */
  get p99_ms(): number | undefined {
    if (this.#gaps_ms.length < gaps_min) return undefined;
    const sorted = [...this.#gaps_ms].sort((a, b) => a - b);
    return sorted[Math.ceil(0.99 * sorted.length) - 1];
  }

  #note(now_ms: number): void {
    if (this.#last_ms !== undefined) {
      this.#gaps_ms[this.#at] = now_ms - this.#last_ms;
      this.#at = (this.#at + 1) % gaps_max;
    }
    this.#last_ms = now_ms;
  }
}
