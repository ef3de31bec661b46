import { z } from 'zod';

/** Buckets between a length and its double. Lower: coarser; higher: more to keep. Four tell lengths to 19 %. */
const perDouble = 4;
/** The last bucket holds what is longer than 2²⁴ tokens. */
const buckets = 24 * perDouble + 2;
/** Each new length makes the weight of all before it less by this. Lower: steadier; higher: follows changes sooner. */
const fading = 0.002;

const countsSchema = z.array(z.number().min(0)).max(buckets);

/** How long answers are, newer ones counting more: which length few of them exceed. */
export class LengthQuantiles {
  static readonly schema = countsSchema;

  /** By length: 0, then up to 1, 2^¼, … tokens. */
  readonly #weights: number[];
  /** What one new length weighs: growing it is the same as making all others less. */
  #unit = 1;

  constructor(counts: readonly number[] = []) {
    this.#weights = Array.from({ length: buckets }, (_, index) => counts[index] ?? 0);
  }

  add(tokens: number): void {
    const bucket = tokens < 1 ? 0 : Math.min(buckets - 1, 1 + Math.ceil(perDouble * Math.log2(tokens)));
    this.#unit *= 1 + fading;
    this.#weights[bucket]! += this.#unit;
    if (this.#unit > 1e6) this.#normalise();
  }

  /** Lengths that were added, faded ones as part of one. */
  get count(): number {
    return this.#weights.reduce((sum, weight) => sum + weight, 0) / this.#unit;
  }

  /** A length that this share of all does not exceed; 0 where there are none. */
  quantile(share: number): number {
    let left = share * this.#weights.reduce((sum, weight) => sum + weight, 0);
    if (left === 0) return 0;
    const bucket = this.#weights.findIndex((weight) => {
      left -= weight;
      return left <= 0 && weight > 0;
    });
    return bucket <= 0 ? 0 : Math.ceil(2 ** ((bucket - 1) / perDouble));
  }

  /** To go on from with the constructor. */
  get counts(): number[] {
    this.#normalise();
    return [...this.#weights];
  }

  #normalise(): void {
    for (const index of this.#weights.keys()) this.#weights[index]! /= this.#unit;
    this.#unit = 1;
  }
}
