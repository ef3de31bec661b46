import { z } from 'zod';

/**
 * Time constant of all weights here: what was so long ago counts e⁻¹ of what is now. Lower: follows changes of the
 * load sooner; higher: steadier, and surer of models that are seldom asked.
 */
export const window_s = 900;

const sumsSchema = z.object({
  at_ms: z.number(),
  weight: z.number().min(0),
  sum: z.number().min(0),
  square_sum: z.number().min(0),
});

/** Exponentially weighted sums of a quantity that is observed now and then. */
export class DecayingMean {
  #sums = { at_ms: 0, weight: 0, sum: 0, square_sum: 0 };

  static readonly schema = sumsSchema;

  static from(sums: z.infer<typeof sumsSchema>): DecayingMean {
    const mean = new DecayingMean();
    mean.#sums = sums;
    return mean;
  }

  add(value: number, now_ms: number): void {
    this.#age(now_ms);
    this.#sums.weight += 1;
    this.#sums.sum += value;
    this.#sums.square_sum += value * value;
  }

  /** Sum of the weights as they are at `now_ms`. */
  weightAt(now_ms: number): number {
    this.#age(now_ms);
    return this.#sums.weight;
  }

  get mean(): number {
    const { weight, sum } = this.#sums;
    return weight > 0 ? sum / weight : 0;
  }

  /** Standard deviation / mean. */
  get cv(): number {
    const { weight, square_sum } = this.#sums;
    const { mean } = this;
    return mean > 0 ? Math.sqrt(Math.max(0, square_sum / weight / mean ** 2 - 1)) : 0;
  }

  /** To go on from with `from`. */
  get sums(): z.infer<typeof sumsSchema> {
    return this.#sums;
  }

  /** A clock that goes back changes nothing. */
  #age(now_ms: number): void {
    const { at_ms, weight, sum, square_sum } = this.#sums;
    if (now_ms <= at_ms) return;
    const factor = Math.exp((at_ms - now_ms) / 1000 / window_s);
    // Weights that are all but nothing keep their ratio: the mean outlives any pause.
    const floor = weight > 0 && weight * factor < weightLeast ? weightLeast / weight : factor;
    this.#sums = {
      at_ms: now_ms,
      weight: weight * floor,
      sum: sum * floor,
      square_sum: square_sum * floor,
    };
  }
}

/** Far below the weight of one observation, and far above what floating point takes for nothing. */
const weightLeast = 1e-9;
