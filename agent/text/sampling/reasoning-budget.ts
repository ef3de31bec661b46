import type { ReasoningMeter } from '../output/reasoning-meter.ts';

/** How long a model may reason before it has to answer; plain data, so that it travels between threads. */
export interface ReasoningLimit {
  /** Tokens between the marks; 0: none. */
  max_tokens: number;
  /** Whether the prompt already opens the reasoning. */
  opened: boolean;
  /** What the model is made to write then: the mark that ends its reasoning. */
  close_tokens: readonly number[];
}

/** Ends a reasoning that has used up its tokens: the next ones are the closing mark's, whatever is drawn. */
export class ReasoningBudget {
  readonly #limit: ReasoningLimit;
  readonly #meter: ReasoningMeter;
  #closed = 0;

  constructor(limit: ReasoningLimit, meter: ReasoningMeter) {
    this.#limit = limit;
    this.#meter = meter;
  }

  /** The token that must come next; undefined where the model is free. */
  get next(): number | undefined {
    return this.#spent ? this.#limit.close_tokens[this.#closed] : undefined;
  }

  take(token: number): void {
    if (this.#spent) this.#closed++;
    this.#meter.take(token);
  }

  get #spent(): boolean {
    return this.#meter.reasoning && this.#meter.inside >= this.#limit.max_tokens;
  }
}
