/**
 * How long answers become: Ō of LLM-Mesh §6.1 from history, per model, and apart for requests that reason, whose answers
 * are several times longer.
 */

export interface LengthKey {
  model: string;
  reasoning: boolean;
}

/** Taken until history says otherwise, in tokens, with the weight of so many answers. */
const prior = { answer: 256, reasoning: 2048, weight: 4 };
/** Answers that history remembers, about. Higher: steadier; lower: follows changes sooner. */
const memory = 500;
/** Lengths are counted in classes of this ratio; an expectation is off by less than half of it. */
const classes_per_doubling = 4;

interface History {
  /** Weight and tokens per class of lengths. */
  weights: number[];
  tokens: number[];
}

export class OutputLengths {
  readonly #histories = new Map<string, History>();

  /** An answer ended by itself or at its limit; cancelled ones say nothing. */
  observe(key: LengthKey, output_tokens: number): void {
    const history = this.#of(key);
    const fade = 1 - 1 / memory;
    for (let at = 0; at < history.weights.length; at++) {
      history.weights[at]! *= fade;
      history.tokens[at]! *= fade;
    }
    const at = classOf(output_tokens);
    while (history.weights.length <= at) {
      history.weights.push(0);
      history.tokens.push(0);
    }
    history.weights[at]! += 1;
    history.tokens[at]! += output_tokens;
  }

  /**
   * Tokens of the whole answer, given that `generated` are there and it goes on: the mean of those in history that were
   * longer. The paper takes the mean of all and, beyond it, what is there; that always falls short for long answers.
   * Never more than `limit`, the request's own bound.
   */
  expected(key: LengthKey, generated = 0, limit = Number.POSITIVE_INFINITY): number {
    const history = this.#of(key);
    const guess = key.reasoning ? prior.reasoning : prior.answer;
    let weight = generated < guess ? prior.weight : 0;
    let tokens = weight * guess;
    const from = classOf(generated);
    for (let at = generated === 0 ? 0 : from + 1; at < history.weights.length; at++) {
      weight += history.weights[at]!;
      tokens += history.tokens[at]!;
    }
    // Nothing in history was this long: a quarter more of what is there.
    const mean = weight > 0.5 ? tokens / weight : generated * 1.25;
    return Math.min(limit, Math.max(mean, generated + 1));
  }

  #of(key: LengthKey): History {
    const name = `${key.reasoning ? 'r' : 'a'}:${key.model}`;
    let history = this.#histories.get(name);
    if (history === undefined) {
      history = { weights: [], tokens: [] };
      this.#histories.set(name, history);
    }
    return history;
  }
}

function classOf(tokens: number): number {
  return tokens <= 1 ? 0 : Math.floor(classes_per_doubling * Math.log2(tokens));
}
