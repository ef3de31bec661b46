import type { BatchingLimits } from './batching.ts';
import type { StepModel } from './step-model.ts';
import type { Wait } from './waiting.ts';

/** Mean lengths in tokens. */
export interface Lengths {
  input_tokens: number;
  output_tokens: number;
}

/** What a prompt meets on its way to the first token. */
export interface PromptPath {
  /** Probability that a step (or, with long prompts, a prompt) runs when it comes, and the mean of its rest. */
  running_share: number;
  residual: number;
  /** Prompts before it that take whole steps. */
  ahead: Wait;
  /** Its own steps, with the prompts that share them. */
  own: number;
  /** Prompts that came meanwhile and follow at once, as far as there are places. */
  behind: number;
}

/** What steps and prompts cost at one pair of lengths, by how many sequences decode beside them; in seconds. */
export class SimulatedServiceTimes {
  readonly lengths: Lengths;
  /** Sequences that can run at once: places, KV, and the tokens a step can hold. */
  readonly most: number;
  readonly max_rate_per_s: number;
  /** Tokens that decode steps make: all but the first. */
  readonly decoded: number;
  readonly #model: StepModel;
  readonly #pp: number;
  /** Tokens of all micro-batches of a step together. */
  readonly #budget: number;
  /** Whole prompts in steps of their own. */
  readonly #apart: boolean;
  /** Prompts come with their KV, and take the step of one token. */
  readonly #arrive: boolean;
  readonly #context: number;
  /** Whole numbers between which times are taken as straight lines. */
  readonly #knots: readonly number[];
  readonly #decode: Float64Array;
  readonly #added: Float64Array;
  readonly #steps: Float64Array;

  constructor(model: StepModel, limits: BatchingLimits, lengths: Lengths) {
    this.lengths = lengths;
    this.#model = model;
    this.#pp = model.input.pp;
    this.#budget = limits.max_batched_tokens * this.#pp;
    this.#apart = limits.prompts === 'prompts-first';
    this.#arrive = limits.role === 'decode';
    const { input_tokens, output_tokens } = lengths;
    this.decoded = output_tokens - 1;
    this.#context = input_tokens + output_tokens / 2;
    const kv = limits.admission === 'reserve' ? input_tokens + output_tokens : this.#context;
    // A step of b tokens holds n decoding ones, and of prompts what each sequence needs once in its time.
    const held =
      this.#apart || this.#arrive
        ? Number.POSITIVE_INFINITY
        : (this.decoded * this.#budget) / (input_tokens + this.decoded);
    this.most = Math.max(
      1,
      Math.floor(Math.min(limits.max_sequences * this.#pp, limits.kv_tokens / kv, held)),
    );
    this.#knots = knotsUpTo(this.most);
    this.#decode = Float64Array.from(this.#knots, (n) => this.#decodeAt(n));
    this.#added = Float64Array.from(this.#knots, (n) => this.#addedAt(n));
    this.#steps = Float64Array.from(this.#knots, (n) =>
      this.#apart || this.#arrive ? 1 : Math.ceil(input_tokens / this.#room(n)),
    );
    // Where nothing is decoded, prompts share their steps with nobody.
    const beside = this.decoded === 0 ? 0 : this.most;
    this.max_rate_per_s =
      1 /
      ((this.decoded * this.#decodeAt(this.most)) / this.most +
        Math.max(1e-12, this.#addedAt(beside, this.promptsPerStep(beside))));
  }

  /** A decode step. */
  decode(sequences: number): number {
    return this.#between(this.#decode, sequences);
  }

  /** What a prompt adds to the engine's time: its steps, less the decoding that they also carry. */
  added(sequences: number): number {
    return this.#between(this.#added, sequences);
  }

  /** Steps that hold parts of one prompt. */
  promptSteps(sequences: number): number {
    return this.#between(this.#steps, sequences);
  }

  /** A prompt's whole way through its steps. */
  prompt(sequences: number): number {
    const beside = this.#apart ? 0 : Math.min(1, sequences) * this.decode(Math.max(1, sequences));
    return this.added(sequences) + this.promptSteps(sequences) * beside;
  }

  /** Prompts that one step has room for; below 1 where a prompt takes several steps. */
  promptsPerStep(sequences: number): number {
    return this.#room(sequences) / (this.#arrive ? 1 : this.lengths.input_tokens);
  }

  /**
   * Prompts that fit into one step together: a step holds those that came during the one before, so its length
   * has mean S = s / (1 − λa) and variance a²λS / (1 − (λa)²); who comes sees E[S²] / E[S] of it, half of that
   * still to go. Prompts that fill steps are served one by one: an M/D/1 queue.
   */
  promptPath(rate: number, sequences: number, decoding: number): PromptPath {
    const whole = this.prompt(sequences);
    const added = this.added(sequences);
    const together = this.promptsPerStep(sequences);
    const carried = Math.min(this.most - sequences, this.decoded / this.promptSteps(sequences));
    if (together < 1.5) {
      const load = Math.min(0.96, rate * whole);
      const decode = (1 - load) * decoding * this.decode(Math.max(1, sequences));
      return {
        running_share: load + (1 - load) * decoding,
        residual: (load * whole + decode) / 2,
        ahead: { probability: load, mean_s: (load * whole + decode) / (2 * (1 - load)) },
        own: whole,
        behind: Math.min(carried, load + load ** 2 / (2 * (1 - load))),
      };
    }
    const load = Math.min(0.99, rate * added);
    const mean = (decoding * this.decode(Math.max(1, sequences))) / (1 - load);
    const seen = mean + (load * added) / (1 - load ** 2);
    const own = whole + added * Math.min(together - 1, rate * seen);
    return {
      running_share: Math.min(1, decoding + (1 - decoding) * rate * whole),
      residual: seen / 2,
      ahead: { probability: 0, mean_s: 0 },
      own,
      behind: Math.min(carried, rate * own),
    };
  }

  /** Seconds a token takes while so many run, prompts that come and `backlog` that wait included. */
  token(sequences: number, rate: number, backlog: number): number {
    const decode = this.decode(sequences);
    const added = this.added(sequences);
    const left = 1 - rate * added;
    const waiting = Math.min(backlog, this.most - sequences);
    // At most every step carries as much of prompts as it can.
    const full = decode + added / Math.min(1, this.promptSteps(sequences));
    return left <= 0 ? full : Math.min(full, (decode + (waiting * added) / Math.max(1, this.decoded)) / left);
  }

  #room(sequences: number): number {
    return Math.max(1, this.#apart ? this.#budget : this.#budget - sequences);
  }

  #keys(sequences: number): [keys: number, windowed: number] {
    return [sequences * this.#context, sequences * Math.min(this.#model.window, this.#context)];
  }

  #decodeAt(sequences: number): number {
    const batch = Math.max(1, sequences);
    return this.#model.stepTime_s(batch, ...this.#keys(batch));
  }

  /** `together` prompts share steps, and what steps cost whatever they hold. */
  #addedAt(sequences: number, together = 1): number {
    if (this.#arrive) return 0;
    const model = this.#model;
    const { input_tokens } = this.lengths;
    const attention = model.prefillAttention_s(input_tokens, 0) / this.#pp;
    if (this.#apart) return model.stepTime_s(0, 0, 0, [{ tokens: input_tokens, before: 0, last: true }]);
    const [keys, windowed] = this.#keys(sequences);
    const room = this.#room(sequences);
    const decode = sequences < 1 ? 0 : this.#decodeAt(sequences);
    const step = (tokens: number, last: boolean): number =>
      model.stepTime_s(sequences, keys, windowed, [{ tokens, before: 0, last }]) -
      model.prefillAttention_s(tokens, 0) / this.#pp -
      decode;
    if (together > 1) {
      const tokens = Math.floor(Math.min(room, together * input_tokens));
      return (step(tokens, true) * input_tokens) / tokens + attention;
    }
    const whole = Math.ceil(input_tokens / room) - 1;
    const rest = Math.max(1, input_tokens - whole * room);
    return (whole > 0 ? whole * step(room, false) : 0) + step(rest, true) + attention;
  }

  #between(values: Float64Array, sequences: number): number {
    const knots = this.#knots;
    let high = 1;
    if (sequences >= knots.at(-1)!) return values[knots.length - 1]!;
    while (knots[high]! < sequences) high++;
    const low = high - 1;
    const part = (sequences - knots[low]!) / (knots[high]! - knots[low]!);
    return values[low]! * (1 - part) + values[high]! * part;
  }
}

/** 0, 1, 2, 3, 4, 6, 8, 12, 16 … and the last. */
function knotsUpTo(most: number): number[] {
  const knots = [0, 1];
  for (let power = 2; power < most; power *= 2)
    for (const knot of [power, power * 1.5]) if (knot < most && Number.isInteger(knot)) knots.push(knot);
  if (most > 1) knots.push(most);
  return knots;
}
