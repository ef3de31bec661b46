import type { Random } from '../cp/random.ts';
import type { PricedModel } from './priced-model.ts';

/** Grouped options by model and type, -1 for none. */
export type Combinations = Int32Array[];

/** By how much a penalty rises where nobody moves. Lower: a cheaper plan. Higher: a plan sooner. */
const penalty_growth = 1.3;
/** The first penalty, as a share of a device's price. */
const penalty_first = 0.05;
/** After so many passes the penalties are forgotten: they rose to a picture of the site that holds no plan. */
const passes_before_anew = 120;
/** Passes in which the models of a plan choose the cheapest that fits, at most. */
const polish_passes_max = 20;

export interface Repaired {
  /** A plan, where one was found. */
  combinations: Combinations | undefined;
  /** Models that chose anew. */
  choices: number;
}

/**
 * A plan from nothing, whatever the size: no pattern is ever listed. Every model takes what is cheapest for it at
 * the prices; where that is more than there is, one model after the other chooses anew, alone, beside what the
 * others hold, and pays a penalty for each device too many. Where nobody wants to move, the penalties of what is
 * still too much rise (breakout: Morris, 1993), so no dead end lasts.
 */
export class Repair {
  readonly #models: readonly PricedModel[];
  readonly #counts: Float64Array;
  readonly #prices: Float64Array;
  readonly #random: Random;
  readonly #taken: Combinations;
  /** Devices by model and type, and in all. */
  readonly #devices: Float64Array[];
  readonly #used: Float64Array;
  readonly #penalties: Float64Array;
  readonly #room: Float64Array;
  readonly #order: number[];
  #passes = 0;

  /** @param prices at which the models' own wishes come near to what there is */
  constructor(models: readonly PricedModel[], counts: Float64Array, prices: Float64Array, random: Random) {
    const types = counts.length;
    this.#models = models;
    this.#counts = counts;
    this.#random = random;
    this.#prices = prices;
    this.#taken = models.map(() => new Int32Array(types).fill(-1));
    this.#devices = models.map(() => new Float64Array(types));
    this.#used = new Float64Array(types);
    this.#penalties = new Float64Array(types);
    this.#room = new Float64Array(types);
    this.#order = models.map((_, model) => model);
    models.forEach((model, index) => {
      model.solve(prices);
      model.take(this.#devices[index]!, this.#taken[index]!);
      for (let type = 0; type < types; type++) this.#used[type]! += this.#devices[index]![type]!;
    });
  }

  /**
   * Passes over all models until they fit; where they do not after so many, it may go on from there.
   * @param choices_max models that choose anew at most
   */
  run(choices_max: number, shouldStop: () => boolean): Repaired {
    let choices = 0;
    while (!this.#fits()) {
      if (choices >= choices_max || (choices > 0 && shouldStop()))
        return { combinations: undefined, choices };
      if (this.#passes++ % passes_before_anew === 0) this.#penalties.fill(0);
      if (!this.#pass()) this.#raisePenalties();
      choices += this.#models.length;
    }
    this.#polish();
    return { combinations: this.#taken.map((each) => each.slice()), choices };
  }

  #fits(): boolean {
    return this.#used.every((used, type) => used <= this.#counts[type]!);
  }

  /** Every model once, in a random order. Whether anything changed. */
  #pass(): boolean {
    let moved = false;
    for (const model of this.#random.shuffle(this.#order))
      if (this.#choose(model, this.#prices, this.#penalties)) moved = true;
    return moved;
  }

  #choose(model: number, prices: Float64Array, penalties: Float64Array): boolean {
    const devices = this.#devices[model]!;
    const before = devices.slice();
    for (let type = 0; type < devices.length; type++) {
      this.#used[type]! -= devices[type]!;
      this.#room[type] = this.#counts[type]! - this.#used[type]!;
    }
    this.#models[model]!.solveBeside(prices, this.#room, penalties);
    devices.fill(0);
    this.#models[model]!.take(devices, this.#taken[model]!);
    let moved = false;
    for (let type = 0; type < devices.length; type++) {
      this.#used[type]! += devices[type]!;
      if (devices[type] !== before[type]) moved = true;
    }
    return moved;
  }

  #raisePenalties(): void {
    for (let type = 0; type < this.#used.length; type++) {
      if (this.#used[type]! <= this.#counts[type]!) continue;
      const first = penalty_first * Math.max(1, this.#prices[type]!);
      this.#penalties[type] = Math.max(first, penalty_growth * this.#penalties[type]!);
    }
  }

  /** From a plan on, prices are no matter: each model takes the cheapest that fits beside the others. */
  #polish(): void {
    const nothing = new Float64Array(this.#counts.length);
    const forbidden = new Float64Array(this.#counts.length).fill(Number.POSITIVE_INFINITY);
    for (let pass = 0; pass < polish_passes_max; pass++) {
      let moved = false;
      for (const model of this.#order) if (this.#choose(model, nothing, forbidden)) moved = true;
      if (!moved) return;
    }
  }
}
