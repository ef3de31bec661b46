import type { AssignmentOption } from './problem.ts';

/**
 * One model alone at given prices: what its cheapest combination of options costs when every device must be
 * paid for. A dynamic programme over shares, type by type (a knapsack of `shares` units).
 */
export class PricedModel {
  readonly #types: number;
  readonly #shares: number;
  /** Options grouped by (type, share): `#first[type·(shares+1)+share]` starts a group. */
  readonly #first: Int32Array;
  readonly #devices: Float64Array;
  readonly #costs: Float64Array;
  /** Original index of each grouped option. */
  readonly indices: Int32Array;
  /** best[type·(shares+1)+r]: least priced cost of r shares on types ≥ `type`; the last row is no type. */
  readonly #best: Float64Array;
  /** Grouped option taken at that entry, or -1 for none. */
  readonly #taken: Int32Array;
  /** What each grouped option costs in the knapsack at hand. */
  readonly #priced: Float64Array;

  /** @param kept indices into `options` to work with */
  constructor(options: readonly AssignmentOption[], kept: readonly number[], types: number, shares: number) {
    this.#types = types;
    this.#shares = shares;
    const group = (index: number): number => options[index]!.type * (shares + 1) + options[index]!.share;
    const order = [...kept].sort((a, b) => group(a) - group(b));
    this.indices = Int32Array.from(order);
    this.#devices = Float64Array.from(order, (index) => options[index]!.devices);
    this.#costs = Float64Array.from(order, (index) => options[index]!.cost);
    this.#first = new Int32Array(types * (shares + 1) + 1);
    for (const index of order) this.#first[group(index) + 1]!++;
    for (let at = 1; at < this.#first.length; at++) this.#first[at]! += this.#first[at - 1]!;
    this.#best = new Float64Array((types + 1) * (shares + 1)).fill(Number.POSITIVE_INFINITY);
    this.#best[types * (shares + 1)] = 0;
    this.#taken = new Int32Array(types * (shares + 1));
    this.#priced = new Float64Array(order.length);
  }

  /** Least priced cost of the whole model; infinite where its options cannot make the whole. */
  solve(prices: Float64Array): number {
    const row = this.#shares + 1;
    for (let type = 0; type < this.#types; type++) {
      const price = prices[type]!;
      for (let at = this.#first[type * row]!, end = this.#first[type * row + row]!; at < end; at++)
        this.#priced[at] = this.#costs[at]! + price * this.#devices[at]!;
    }
    return this.#knapsack();
  }

  /**
   * The same where other models already sit: a device beyond the `room` they leave costs its `penalties` more.
   * Devices of each type are taken by one option, so the least over all combinations is exact.
   */
  solveBeside(prices: Float64Array, room: Float64Array, penalties: Float64Array): number {
    const row = this.#shares + 1;
    for (let type = 0; type < this.#types; type++) {
      const price = prices[type]!;
      const free = Math.max(0, room[type]!);
      const penalty = penalties[type]!;
      for (let at = this.#first[type * row]!, end = this.#first[type * row + row]!; at < end; at++) {
        const devices = this.#devices[at]!;
        const over = devices > free ? penalty * (devices - free) : 0;
        this.#priced[at] = this.#costs[at]! + price * devices + over;
      }
    }
    return this.#knapsack();
  }

  #knapsack(): number {
    const row = this.#shares + 1;
    const best = this.#best;
    for (let type = this.#types - 1; type >= 0; type--) {
      const here = type * row;
      const next = here + row;
      for (let r = 0; r < row; r++) {
        best[here + r] = best[next + r]!;
        this.#taken[here + r] = -1;
      }
      for (let share = 1; share < row; share++) {
        let least = Number.POSITIVE_INFINITY;
        let option = -1;
        for (let at = this.#first[here + share]!; at < this.#first[here + share + 1]!; at++) {
          const priced = this.#priced[at]!;
          if (priced < least) {
            least = priced;
            option = at;
          }
        }
        if (option < 0) continue;
        for (let r = share; r < row; r++) {
          const total = best[next + r - share]! + least;
          if (total < best[here + r]!) {
            best[here + r] = total;
            this.#taken[here + r] = option;
          }
        }
      }
    }
    return best[this.#shares]!;
  }

  /**
   * Adds the devices of the combination that was found last to `usage`; returns its cost without prices.
   * @param options is given the grouped options that were taken, by type, -1 for none
   */
  take(usage: Float64Array, options?: Int32Array): number {
    options?.fill(-1);
    let cost = 0;
    let r = this.#shares;
    for (let type = 0; type < this.#types && r > 0; type++) {
      const option = this.#taken[type * (this.#shares + 1) + r]!;
      if (option < 0) continue;
      usage[type]! += this.#devices[option]!;
      if (options) options[type] = option;
      cost += this.#costs[option]!;
      r -= this.#shareOf(option, type);
    }
    return cost;
  }

  /**
   * Every combination whose priced cost is at most `most`, after `solve` at the same prices.
   * @param counts combinations that take more devices of a type are left out
   * @param emit is given the options taken by type (grouped, or -1), the devices by type, and the cost
   *   without prices; it returns false to stop
   * @returns false where `emit` stopped it
   */
  enumerate(
    prices: Float64Array,
    most: number,
    counts: Float64Array,
    emit: (options: Int32Array, devices: Float64Array, cost: number) => boolean,
  ): boolean {
    const row = this.#shares + 1;
    const taken = new Int32Array(this.#types).fill(-1);
    const devices = new Float64Array(this.#types);
    const visit = (type: number, r: number, priced: number, cost: number): boolean => {
      if (type === this.#types) return r > 0 || emit(taken, devices, cost);
      if (priced + this.#best[(type + 1) * row + r]! <= most && !visit(type + 1, r, priced, cost))
        return false;
      for (let share = 1; share <= r; share++) {
        const rest = this.#best[(type + 1) * row + r - share]!;
        for (
          let at = this.#first[type * row + share]!, end = this.#first[type * row + share + 1]!;
          at < end;
          at++
        ) {
          const here = priced + this.#costs[at]! + prices[type]! * this.#devices[at]!;
          if (here + rest > most || this.#devices[at]! > counts[type]!) continue;
          taken[type] = at;
          devices[type] = this.#devices[at]!;
          if (!visit(type + 1, r - share, here, cost + this.#costs[at]!)) return false;
        }
        taken[type] = -1;
        devices[type] = 0;
      }
      return true;
    };
    return visit(0, this.#shares, 0, 0);
  }

  #shareOf(option: number, type: number): number {
    const row = this.#shares + 1;
    for (let share = 1; share < row; share++) if (option < this.#first[type * row + share + 1]!) return share;
    throw new RangeError(`option ${option} is of no share`);
  }
}
