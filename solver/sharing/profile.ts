import type { ProfileSamples } from './profile-samples.ts';
import { completeRows } from './ragged-grid.ts';

/** Share of a seen deviation that goes into the profile. Higher: follows faster, and noise too. */
const refresh_rate = 0.1;
/** One iteration moves the profile by at most this factor: a stall of the machine is no property of the model. */
const refresh_factor_max = 4;

/**
 * How long one iteration of a model takes on a device (LLM-Mesh §5.2): prompts by their length, decode steps by batch
 * size and average length, measured at powers of two and interpolated linearly; refreshed from what is seen later.
 */
export class IterationProfile {
  readonly #lengths: Float64Array;
  readonly #prefill: Float64Array;
  readonly #batches: Float64Array;
  readonly #contexts: Float64Array;
  /** Row per context, column per batch. */
  readonly #decode: Float64Array;

  /**
   * Decode samples need not form a grid: large batches of long sequences do not fit, and their places are continued
   * from what fits.
   * @throws RangeError where there is no prefill or no decode sample, or a value is not positive
   */
  constructor(samples: ProfileSamples) {
    const { prefill, decode } = samples;
    if (prefill.length === 0 || decode.length === 0)
      throw new RangeError('a profile needs at least one prefill and one decode sample');
    for (const value of [...prefill, ...decode].flatMap((sample) => Object.values(sample) as number[]))
      if (!(value > 0 && value < Number.POSITIVE_INFINITY))
        throw new RangeError(`a profile's sample holds ${value}; lengths, batches and times are positive`);
    const sorted = [...prefill].sort((a, b) => a.tokens - b.tokens);
    this.#lengths = Float64Array.from(sorted, ({ tokens }) => tokens);
    this.#prefill = Float64Array.from(sorted, ({ ms }) => ms);
    const axis = (values: number[]): Float64Array => Float64Array.from(new Set(values)).sort();
    this.#batches = axis(decode.map(({ batch }) => batch));
    this.#contexts = axis(decode.map(({ tokens }) => tokens));
    this.#decode = completeRows(this.#contexts, this.#batches, decode);
  }

  /** Milliseconds for a prompt of so many tokens in one iteration; 0 tokens take none. */
  prefill_ms(tokens: number): number {
    if (tokens <= 0) return 0;
    const at = segment(this.#lengths, tokens);
    return along(this.#lengths, this.#prefill, at, tokens);
  }

  /**
   * Milliseconds for `tokens` more tokens of a prompt whose first `before` are done: what they add to the whole prompt,
   * and not less than alone, since each iteration reads the weights.
   */
  chunk_ms(before: number, tokens: number): number {
    const alone = this.prefill_ms(tokens);
    return before === 0 ? alone : Math.max(alone, this.prefill_ms(before + tokens) - this.prefill_ms(before));
  }

  /** Milliseconds for one token of each of `batch` sequences of this average length. Below the grid: its edge. */
  decode_ms(batch: number, tokens: number): number {
    const [row, column] = [segment(this.#contexts, tokens), segment(this.#batches, batch)];
    const down = fraction(this.#contexts, row, Math.max(tokens, this.#contexts[0]!));
    const right = fraction(this.#batches, column, Math.max(batch, this.#batches[0]!));
    const columns = this.#batches.length;
    const [here, below] = [row * columns, Math.min(row + 1, this.#contexts.length - 1) * columns];
    const next = Math.min(column + 1, columns - 1);
    const top = this.#decode[here + column]! * (1 - right) + this.#decode[here + next]! * right;
    const bottom = this.#decode[below + column]! * (1 - right) + this.#decode[below + next]! * right;
    return Math.max(top * (1 - down) + bottom * down, this.#decode[0]! * 0.5);
  }

  /**
   * An iteration was seen: the points around it take a part of the deviation, each as much as it weighs there, so that
   * the profile's answer at this very point moves by `refresh_rate` of it.
   */
  observePrefill(tokens: number, ms: number): void {
    const at = segment(this.#lengths, tokens);
    const inside = clamp(tokens, this.#lengths);
    const right = fraction(this.#lengths, at, inside);
    const error = deviation(this.prefill_ms(tokens), ms) * this.prefill_ms(inside);
    const scale = (refresh_rate * error) / ((1 - right) ** 2 + right ** 2);
    move(this.#prefill, at, scale * (1 - right));
    if (right > 0) move(this.#prefill, at + 1, scale * right);
  }

  observeDecode(batch: number, tokens: number, ms: number): void {
    const [row, column] = [segment(this.#contexts, tokens), segment(this.#batches, batch)];
    const [context, width] = [clamp(tokens, this.#contexts), clamp(batch, this.#batches)];
    const down = fraction(this.#contexts, row, context);
    const right = fraction(this.#batches, column, width);
    const error = deviation(this.decode_ms(batch, tokens), ms) * this.decode_ms(width, context);
    const weights = [(1 - down) * (1 - right), (1 - down) * right, down * (1 - right), down * right];
    const scale = (refresh_rate * error) / weights.reduce((sum, weight) => sum + weight ** 2, 0);
    for (const [corner, weight] of weights.entries())
      if (weight > 0)
        move(
          this.#decode,
          (row + (corner >> 1)) * this.#batches.length + column + (corner & 1),
          scale * weight,
        );
  }

  /** What the profile knows now, to be kept per model and device. */
  samples(): ProfileSamples {
    return {
      prefill: Array.from(this.#lengths, (tokens, at) => ({ tokens, ms: this.#prefill[at]! })),
      decode: Array.from(this.#contexts).flatMap((tokens, row) =>
        Array.from(this.#batches, (batch, column) => ({
          batch,
          tokens,
          ms: this.#decode[row * this.#batches.length + column]!,
        })),
      ),
    };
  }
}

/** Index of the point left of a value; the last but one beyond the end, so that the last slope goes on. */
function segment(axis: Float64Array, value: number): number {
  const last = axis.length - 2;
  let at = 0;
  while (at < last && axis[at + 1]! <= value) at++;
  return at;
}

/** Where a value lies between the point at `at` (0) and the next (1); beyond 1 past the end. */
function fraction(axis: Float64Array, at: number, value: number): number {
  if (axis.length === 1) return 0;
  return (value - axis[at]!) / (axis[at + 1]! - axis[at]!);
}

/** Linear between points; below the first, in proportion; never below a tenth of the first. */
function along(axis: Float64Array, values: Float64Array, at: number, value: number): number {
  if (axis.length === 1) return values[0]! * Math.max(0.1, value / axis[0]!);
  const right = fraction(axis, at, value);
  return Math.max(values[at]! * (1 - right) + values[at + 1]! * right, 0.1 * values[0]!);
}

function clamp(value: number, axis: Float64Array): number {
  return Math.min(Math.max(value, axis[0]!), axis[axis.length - 1]!);
}

function deviation(expected_ms: number, seen_ms: number): number {
  return Math.min(Math.max(seen_ms / expected_ms, 1 / refresh_factor_max), refresh_factor_max) - 1;
}

function move(values: Float64Array, at: number, by: number): void {
  values[at] = Math.max(values[at]! + by, values[at]! * 0.5);
}
