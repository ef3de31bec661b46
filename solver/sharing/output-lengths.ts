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
/** Longer answers count as this long. */
const tokens_max = 2 ** 24 - 1;
const classes_max = 24 * classes_per_doubling;

interface History {
  /** Weight and tokens per class of lengths. */
  weights: number[];
  tokens: number[];
}

/**
 * What is kept of a model's answers between workers: at most `classes_max` classes each. Absent where none was seen.
 */
export interface KeptLengths {
  answers?: History;
  reasoning?: History;
}

const kinds = ['answers', 'reasoning'] as const;

/**
 * How long answers become: Ō of LLM-Mesh §6.1 from history, per model, and apart for requests that reason, whose
 * answers are several times longer.
 */
export class OutputLengths {
  readonly #histories = new Map<string, History>();

  /** An answer ended by itself or at its limit; cancelled ones say nothing. */
  observe(key: LengthKey, answer_tokens: number): void {
    const output_tokens = Math.min(answer_tokens, tokens_max);
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

  /** Undefined where no answer of the model has been seen. */
  kept(model: string): KeptLengths | undefined {
    const kept: KeptLengths = {};
    for (const kind of kinds) {
      const history = this.#histories.get(nameOf({ model, reasoning: kind === 'reasoning' }));
      if (history && history.weights.length > 0)
        kept[kind] = { weights: [...history.weights], tokens: [...history.tokens] };
    }
    return kept.answers || kept.reasoning ? kept : undefined;
  }

  /**
   * Begins with what was kept; what has been seen of the model since then goes before it.
   * @throws RangeError where it is nothing that answers could have left
   */
  restore(model: string, kept: KeptLengths): void {
    for (const kind of kinds) {
      const { weights, tokens } = kept[kind] ?? { weights: [], tokens: [] };
      if (!isPlausible(weights, tokens)) throw new RangeError(`no history of answers: ${kind} of ${model}`);
      const history = this.#of({ model, reasoning: kind === 'reasoning' });
      if (history.weights.length > 0) continue;
      history.weights.push(...weights);
      history.tokens.push(...tokens);
    }
  }

  /** The model is gone; another one may come under its name. */
  forget(model: string): void {
    for (const kind of kinds) this.#histories.delete(nameOf({ model, reasoning: kind === 'reasoning' }));
  }

  #of(key: LengthKey): History {
    const name = nameOf(key);
    let history = this.#histories.get(name);
    if (history === undefined) {
      history = { weights: [], tokens: [] };
      this.#histories.set(name, history);
    }
    return history;
  }
}

function nameOf({ model, reasoning }: LengthKey): string {
  return `${reasoning ? 'r' : 'a'}:${model}`;
}

/** As many answers as are remembered, and in each class tokens of its lengths; a little more for rounding. */
function isPlausible(weights: readonly number[], tokens: readonly number[]): boolean {
  if (weights.length !== tokens.length || weights.length > classes_max) return false;
  let sum = 0;
  for (const [at, weight] of weights.entries()) {
    const longest = 2 ** ((at + 1) / classes_per_doubling);
    if (!(weight >= 0 && tokens[at]! >= 0 && tokens[at]! <= 1.001 * weight * longest)) return false;
    sum += weight;
  }
  return sum <= 1.001 * memory;
}

function classOf(tokens: number): number {
  return tokens <= 1 ? 0 : Math.floor(classes_per_doubling * Math.log2(tokens));
}
