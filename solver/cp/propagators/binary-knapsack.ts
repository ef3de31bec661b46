import { fail } from '../inconsistency.ts';
import { Propagator } from '../propagator.ts';
import type { Variable } from '../variable.ts';

/**
 * 0/1 variables: Σ weights·x ≤ capacity and Σ profits·x = profit. The profit is bounded above by Dantzig's
 * relaxation (items by profit a weight, the last one in part), and an item is decided where the relaxation
 * with the item forced in, or forced out, falls short of what profit asks for (Fahle and Sellmann, 2002).
 * Weights and profits are non-negative integers.
 */
export class BinaryKnapsack extends Propagator {
  override readonly priority = 'late';
  readonly #weights: readonly number[];
  readonly #profits: readonly number[];
  readonly #items: readonly Variable[];
  readonly #capacity: number;
  readonly #profit: Variable;
  readonly #order: readonly number[];

  constructor(
    weights: readonly number[],
    profits: readonly number[],
    items: readonly Variable[],
    capacity: number,
    profit: Variable,
  ) {
    super();
    if (weights.length !== items.length || profits.length !== items.length)
      throw new RangeError('one weight and one profit an item');
    if ([...weights, ...profits].some((each) => each < 0)) throw new RangeError('negative weight or profit');
    this.#weights = weights;
    this.#profits = profits;
    this.#items = items;
    this.#capacity = capacity;
    this.#profit = profit;
    // p/w descending without division: weightless items first.
    this.#order = items
      .map((_, i) => i)
      .sort((a, b) => profits[b]! * weights[a]! - profits[a]! * weights[b]! || weights[a]! - weights[b]!);
  }

  watch(): void {
    for (const item of this.#items) item.wakeOnFix(this);
    this.#profit.wakeOnBounds(this);
  }

  propagate(): void {
    let room = this.#capacity;
    let earned = 0;
    let possible = 0;
    this.#items.forEach((item, i) => {
      item.removeBelow(0);
      item.removeAbove(1);
      if (item.min === 1) {
        room -= this.#weights[i]!;
        earned += this.#profits[i]!;
      }
      if (item.max === 1) possible += this.#profits[i]!;
    });
    if (room < 0) fail();
    this.#profit.removeBelow(earned);
    this.#profit.removeAbove(Math.min(possible, earned + this.#relaxed(room, -1)));
    for (let i = 0; i < this.#items.length; i++) {
      const item = this.#items[i]!;
      if (item.fixed) continue;
      const weight = this.#weights[i]!;
      const profit = this.#profits[i]!;
      const without = earned + this.#relaxed(room, i);
      const wanted = this.#profit.min;
      const withIt = weight > room ? -1 : earned + profit + this.#relaxed(room - weight, i);
      if (earned + profit > this.#profit.max || withIt < wanted) item.fix(0);
      if (without < wanted || possible - profit < wanted) {
        // What is earned and what room is left have changed; the item's own wake runs this again.
        item.fix(1);
        return;
      }
    }
  }

  /** Largest whole profit of undecided items but `left_out` in `room`, the last item taken in part. */
  #relaxed(room: number, left_out: number): number {
    let profit = 0;
    for (const i of this.#order) {
      if (i === left_out || this.#items[i]!.fixed) continue;
      const weight = this.#weights[i]!;
      if (weight > room) return profit + Math.floor((this.#profits[i]! * room) / weight);
      room -= weight;
      profit += this.#profits[i]!;
    }
    return profit;
  }
}
