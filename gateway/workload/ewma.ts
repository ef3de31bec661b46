import { z } from 'zod';

/**
 * Time constant of all weights here: what was so long ago counts e⁻¹ of what is now. Lower: follows changes of the
 * load sooner; higher: steadier, and surer of models that are seldom asked.
 */
export const window_s = 900;
/** Weights are aged no more often: within this they lose less than a thousandth. */
const step_ms = 500;
/** Far below the weight of one observation, and far above what floating point takes for nothing. */
const weightLeast = 1e-9;

const sumsSchema = z.object({
  at_ms: z.number(),
  weight: z.number().min(0),
  sum: z.number().min(0),
  square_sum: z.number().min(0),
});
type Sums = z.infer<typeof sumsSchema>;

/** Exponentially weighted sums of a quantity that is observed now and then. */
export class Ewma {
  readonly #sums: Sums;

  static readonly schema = sumsSchema;

  constructor(sums: Sums = { at_ms: 0, weight: 0, sum: 0, square_sum: 0 }) {
    this.#sums = sums;
  }

  add(value: number, now_ms: number): void {
    const sums = this.#sums;
    if (now_ms - sums.at_ms > step_ms) this.#age(now_ms);
    sums.weight += 1;
    sums.sum += value;
    sums.square_sum += value * value;
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

  /** To go on from with the constructor. */
  get sums(): Readonly<Sums> {
    return this.#sums;
  }

  /** A clock that goes back changes nothing. */
  #age(now_ms: number): void {
    const sums = this.#sums;
    if (now_ms <= sums.at_ms) return;
    const decay = Math.exp((sums.at_ms - now_ms) / 1000 / window_s);
    // Weights that are all but nothing keep their ratio: the mean outlives any pause.
    const factor = sums.weight * decay < weightLeast ? Math.min(1, weightLeast / sums.weight) : decay;
    sums.at_ms = now_ms;
    if (sums.weight === 0) return;
    sums.weight *= factor;
    sums.sum *= factor;
    sums.square_sum *= factor;
  }
}
