import { fail } from '../cp/inconsistency.ts';
import type { SparseDomain } from '../cp/sparse-domain.ts';
import type { Trail } from '../cp/trail.ts';
import { invert } from './invert.ts';
import { OpenColumns } from './open-columns.ts';
import type { ModelPatterns } from './patterns.ts';

/** Values and reduced costs below this are zero. */
const tolerance = 1e-9;
/** Pivots a relaxation may take; where they do not suffice the bound reached so far is used. */
const pivots_max = 400;

/**
 * The linear relaxation of "one pattern a model, capacities by type": models may mix patterns. It has one row
 * a model and one a type. Because every model's row says only "one pattern in all", its basis is kept as one
 * key pattern a model and as many extra columns as there are types (generalised upper bounds: Dantzig and Van
 * Slyke, 1967), so a pivot inverts a matrix of types × types whatever the number of models. The dual simplex
 * runs from the parent's basis; the prices it ends with are used only as Lagrange multipliers, so that
 * rounding can weaken the bound but never make it wrong.
 */
export class Relaxation {
  /** Prices of the last relaxation, by type. */
  readonly prices: Float64Array;
  /** Bound of the last relaxation. */
  bound = Number.NEGATIVE_INFINITY;
  /** Per pattern `types + 1` numbers, the cost and the devices by type; all models in one array. */
  readonly data: Float64Array;
  /** First pattern of each model in `data`. */
  readonly first: Int32Array;
  /** By pattern, what it costs at the prices that `boundAtPrices` was asked for last; of those that are left. */
  readonly priced: Float64Array;
  /** By model, the least of them. */
  readonly least: Float64Array;

  readonly #trail: Trail;
  readonly #domains: readonly SparseDomain[];
  readonly #types: number;
  readonly #stride: number;
  readonly #counts: Float64Array;
  readonly #modelOf: Int32Array;
  /** Cells of the basis: key pattern by model, then extra columns: a pattern, or -1 − type for a slack. */
  readonly #keyCells: Int32Array;
  readonly #extraCells: Int32Array;

  readonly #keys: Int32Array;
  readonly #extras: Int32Array;
  readonly #matrix: Float64Array;
  readonly #inverse: Float64Array;
  readonly #values: Float64Array;
  readonly #keyValues: Float64Array;
  readonly #row: Float64Array;
  readonly #room: Float64Array;
  readonly #columns: OpenColumns;

  /** @param domains by model: the numbers of the patterns that are left */
  constructor(
    trail: Trail,
    domains: readonly SparseDomain[],
    patterns: readonly ModelPatterns[],
    counts: Float64Array,
  ) {
    const types = counts.length;
    this.#trail = trail;
    this.#domains = domains;
    this.#types = types;
    this.#stride = types + 1;
    this.#counts = counts;
    this.first = new Int32Array(patterns.length + 1);
    patterns.forEach(({ count }, model) => {
      this.first[model + 1] = this.first[model]! + count;
    });
    const total = this.first[patterns.length]!;
    this.data = new Float64Array(total * this.#stride);
    this.priced = new Float64Array(total);
    this.least = new Float64Array(patterns.length);
    this.#columns = new OpenColumns(total, patterns.length, types);
    this.#modelOf = new Int32Array(total);
    patterns.forEach(({ data, count }, model) => {
      this.data.set(data, this.first[model]! * this.#stride);
      this.#modelOf.fill(model, this.first[model]!, this.first[model]! + count);
    });
    // Cheapest patterns and no prices: a dual feasible start.
    this.#keyCells = Int32Array.from(patterns, (_, model) => {
      let cheapest = this.first[model]!;
      for (let pattern = cheapest; pattern < this.first[model + 1]!; pattern++)
        if (this.#cost(pattern) < this.#cost(cheapest)) cheapest = pattern;
      return trail.cell(cheapest);
    });
    this.#extraCells = Int32Array.from(counts, (_, type) => trail.cell(-1 - type));
    this.#keys = new Int32Array(patterns.length);
    this.#extras = new Int32Array(types);
    this.#matrix = new Float64Array(types * types);
    this.#inverse = new Float64Array(types * types);
    this.#values = new Float64Array(types);
    this.#keyValues = new Float64Array(patterns.length);
    this.#row = new Float64Array(types);
    this.#room = new Float64Array(types);
    this.prices = new Float64Array(types);
  }

  /** Dual simplex from the basis of the parent node. @throws inconsistency when the bound passes the objective */
  solve(most: number): void {
    const trail = this.#trail;
    const models = this.#domains.length;
    for (let model = 0; model < models; model++) this.#keys[model] = trail.get(this.#keyCells[model]!);
    for (let column = 0; column < this.#types; column++)
      this.#extras[column] = trail.get(this.#extraCells[column]!);
    this.#columns.take(this.#domains, this.first, this.data);
    for (let pivot = 0; ; pivot++) {
      if (!this.#solveBasis()) {
        this.#resetBasis();
        break;
      }
      if (this.bound > most + this.slop) fail();
      if (pivot === pivots_max || !this.#pivot(most)) break;
    }

    for (let model = 0; model < models; model++) trail.set(this.#keyCells[model]!, this.#keys[model]!);
    for (let column = 0; column < this.#types; column++)
      trail.set(this.#extraCells[column]!, this.#extras[column]!);
  }

  /** Least whole cost that the bound of the last relaxation allows. */
  get leastCost(): number {
    return Math.ceil(this.bound - this.slop);
  }

  /** Weight of the key pattern of a model in the relaxation: 1 where the relaxation is decided on it. */
  keyWeight(model: number): number {
    return this.#keyValues[model]!;
  }

  /** Pattern number, within the model, that the relaxation is built around. */
  keyPattern(model: number): number {
    return this.#keys[model]! - this.first[model]!;
  }

  /** Devices of a type a pattern of a model takes. */
  devices(model: number, pattern: number, type: number): number {
    return this.data[(this.first[model]! + pattern) * this.#stride + 1 + type]!;
  }

  costOf(model: number, pattern: number): number {
    return this.#cost(this.first[model]! + pattern);
  }

  /** Patterns of fractional weight beside the keys: told (model, pattern, weight). */
  fractions(tell: (model: number, pattern: number, weight: number) => void): void {
    for (let column = 0; column < this.#types; column++) {
      const extra = this.#extras[column]!;
      if (extra < 0 || this.#values[column]! < 1e-7) continue;
      const model = this.#modelOf[extra]!;
      tell(model, extra - this.first[model]!, this.#values[column]!);
    }
  }

  /** How much a pattern costs at the present prices above the model's key pattern. */
  reducedCost(model: number, pattern: number): number {
    return this.#pricedNow(this.first[model]! + pattern) - this.#pricedNow(this.#keys[model]!);
  }

  /** The Lagrangian bound at `prices`, from all allowed patterns; sets `priced` and `least`. */
  boundAtPrices(): number {
    const { data, prices, first, priced } = this;
    const types = this.#types;
    const stride = this.#stride;
    let bound = 0;
    for (let type = 0; type < types; type++) bound -= prices[type]! * this.#counts[type]!;
    for (let model = 0; model < this.#domains.length; model++) {
      const { dense, size } = this.#domains[model]!;
      const start = first[model]!;
      let least = Number.POSITIVE_INFINITY;
      for (let index = 0; index < size; index++) {
        const pattern = start + dense[index]!;
        let at = pattern * stride;
        let sum = data[at]!;
        for (let type = 0; type < types; type++) sum += prices[type]! * data[++at]!;
        priced[pattern] = sum;
        if (sum < least) least = sum;
      }
      this.least[model] = least;
      bound += least;
    }
    return bound;
  }

  #cost(pattern: number): number {
    return this.data[pattern * this.#stride]!;
  }

  #pricedNow(pattern: number): number {
    let at = pattern * this.#stride;
    let sum = this.data[at]!;
    for (let type = 0; type < this.#types; type++) sum += this.prices[type]! * this.data[++at]!;
    return sum;
  }

  /** Rounding allowed for before a bound is believed; costs are whole numbers. */
  get slop(): number {
    return 1e-6 + 1e-10 * Math.abs(this.bound);
  }

  /** Begins anew: at the prices there are, every model's cheapest pattern, and nothing is scarce. */
  #resetBasis(): void {
    for (let model = 0; model < this.#domains.length; model++) {
      const { dense, size } = this.#domains[model]!;
      const first = this.first[model]!;
      let key = first + dense[0]!;
      for (let index = 1; index < size; index++)
        if (this.#pricedNow(first + dense[index]!) < this.#pricedNow(key)) key = first + dense[index]!;
      this.#keys[model] = key;
      this.#keyValues[model] = 1;
    }
    for (let type = 0; type < this.#types; type++) this.#extras[type] = -1 - type;
    this.#values.fill(0);
  }

  /** Prices, values of basic columns and the bound, from the basis alone. False where it is singular. */
  #solveBasis(): boolean {
    const types = this.#types;
    const stride = this.#stride;
    const data = this.data;
    const models = this.#domains.length;
    const matrix = this.#matrix;
    const inverse = this.#inverse;
    const values = this.#values;
    for (let column = 0; column < types; column++) {
      const extra = this.#extras[column]!;
      if (extra < 0) {
        for (let type = 0; type < types; type++) matrix[type * types + column] = type === -1 - extra ? 1 : 0;
        continue;
      }
      const at = extra * stride + 1;
      const key = this.#keys[this.#modelOf[extra]!]! * stride + 1;
      for (let type = 0; type < types; type++)
        matrix[type * types + column] = data[at + type]! - data[key + type]!;
    }
    if (!invert(matrix, inverse, types)) return false;
    const { prices } = this;
    prices.fill(0);
    for (let column = 0; column < types; column++) {
      const extra = this.#extras[column]!;
      if (extra < 0) continue;
      const dearer = this.#cost(extra) - this.#cost(this.#keys[this.#modelOf[extra]!]!);
      for (let type = 0; type < types; type++) prices[type]! -= dearer * inverse[column * types + type]!;
    }
    let bound = 0;
    const room = this.#room;
    for (let type = 0; type < types; type++) {
      if (prices[type]! < 0) prices[type] = 0;
      room[type] = this.#counts[type]!;
      bound -= prices[type]! * this.#counts[type]!;
    }
    for (let model = 0; model < models; model++) {
      const at = this.#keys[model]! * stride;
      let sum = data[at]!;
      for (let type = 0; type < types; type++) {
        const devices = data[at + 1 + type]!;
        sum += prices[type]! * devices;
        room[type]! -= devices;
      }
      bound += sum;
      this.#keyValues[model] = 1;
    }
    this.bound = bound;
    for (let column = 0; column < types; column++) {
      let value = 0;
      for (let type = 0; type < types; type++) value += inverse[column * types + type]! * room[type]!;
      values[column] = value;
      const extra = this.#extras[column]!;
      if (extra >= 0) this.#keyValues[this.#modelOf[extra]!]! -= value;
    }
    return true;
  }

  /** One dual simplex pivot. Returns false at the optimum, and where no column can enter. */
  #pivot(most: number): boolean {
    const out = this.#leaving();
    if (out === undefined) return false;
    const leavingModel = out.leaving - this.#types;
    this.#takeRow(out.leaving);
    const entering = this.#entering(leavingModel, out.sign);
    if (entering === undefined) return this.#unbounded(out.sign, most);
    this.#exchange(out.leaving, entering);
    return true;
  }

  /** The basic column that is furthest outside: negative, or present although it was removed. */
  #leaving(): { leaving: number; sign: number } | undefined {
    const types = this.#types;
    let worst = 1e-7;
    let leaving = -1;
    let sign = 1;
    for (let column = 0; column < types; column++) {
      const value = this.#values[column]!;
      const extra = this.#extras[column]!;
      const outside = value < 0 ? -value : extra >= 0 && !this.#allowed(extra) ? value : 0;
      if (outside <= worst) continue;
      worst = outside;
      leaving = column;
      sign = value < 0 ? -1 : 1;
    }
    for (let model = 0; model < this.#domains.length; model++) {
      const value = this.#keyValues[model]!;
      if (value === 0) continue;
      const outside = value < 0 ? -value : this.#allowed(this.#keys[model]!) ? 0 : value;
      if (outside <= worst) continue;
      worst = outside;
      leaving = types + model;
      sign = value < 0 ? -1 : 1;
    }
    return leaving < 0 ? undefined : { leaving, sign };
  }

  /** Sets `#row` to the row of the inverse that belongs to the leaving column. */
  #takeRow(leaving: number): void {
    const types = this.#types;
    const row = this.#row;
    const leavingModel = leaving - types;
    if (leavingModel < 0) {
      for (let type = 0; type < types; type++) row[type] = this.#inverse[leaving * types + type]!;
      return;
    }
    row.fill(0);
    for (let column = 0; column < types; column++) {
      const extra = this.#extras[column]!;
      if (extra < 0 || this.#modelOf[extra] !== leavingModel) continue;
      for (let type = 0; type < types; type++) row[type]! -= this.#inverse[column * types + type]!;
    }
  }

  /** Ratio test over every allowed column: the one whose reduced cost reaches zero first; undefined: none can enter. */
  #entering(leavingModel: number, sign: number): number | undefined {
    const types = this.#types;
    const stride = this.#stride;
    const { data, prices } = this;
    const row = this.#row;
    let ratio = Number.POSITIVE_INFINITY;
    let steepest = 0;
    let entering: number | undefined;
    for (let type = 0; type < types; type++) {
      const slope = sign * row[type]!;
      if (slope <= tolerance || this.#extras.includes(-1 - type)) continue;
      const of = prices[type]! / slope;
      if (of < ratio - tolerance || (of < ratio + tolerance && slope > steepest)) {
        ratio = of;
        steepest = slope;
        entering = -1 - type;
      }
    }
    const columns = this.#columns;
    columns.measure(prices, row);
    const { reduced, slopes, patterns } = columns;
    for (let model = 0; model < this.#domains.length; model++) {
      const key = this.#keys[model]! * stride;
      let base = data[key]!;
      let slopeBase = leavingModel === model ? sign : 0;
      for (let type = 0; type < types; type++) {
        const devices = data[key + 1 + type]!;
        base += prices[type]! * devices;
        slopeBase -= sign * row[type]! * devices;
      }
      for (let at = columns.first[model]!, end = columns.first[model + 1]!; at < end; at++) {
        const slope = slopeBase + sign * slopes[at]!;
        if (slope <= tolerance) continue;
        const above = Math.max(0, reduced[at]! - base);
        if (above > (ratio + tolerance) * slope) continue;
        const of = above / slope;
        if (of > ratio - tolerance && slope <= steepest) continue;
        const pattern = patterns[at]!;
        if (pattern === this.#keys[model] || this.#extras.includes(pattern)) continue;
        ratio = Math.min(ratio, of);
        steepest = slope;
        entering = pattern;
      }
    }
    return entering;
  }

  /**
   * No column can repair the row: the relaxation has no solution. Proved as a bound: prices moved along the
   * row raise it beyond the objective.
   */
  #unbounded(sign: number, most: number): boolean {
    const { prices } = this;
    const old = prices.slice();
    for (let far = 1; far < 2 ** 60; far *= 4) {
      for (let type = 0; type < this.#types; type++)
        prices[type] = Math.max(0, old[type]! - sign * far * this.#row[type]!);
      const bound = this.boundAtPrices();
      if (bound > most + 1e-6 + 1e-9 * Math.abs(bound)) fail();
    }
    prices.set(old);
    return false;
  }

  /** `leaving`: an extra column, or types + model for that model's key. */
  #exchange(leaving: number, entering: number): void {
    const types = this.#types;
    let column = leaving;
    if (leaving >= types) {
      const model = leaving - types;
      column = -1;
      for (let each = 0; each < types; each++) {
        const extra = this.#extras[each]!;
        if (extra >= 0 && this.#modelOf[extra] === model) column = each;
      }
      // Without an extra of its own the key can only be replaced by a pattern of the same model.
      if (column < 0) {
        this.#keys[model] = entering;
        return;
      }
      this.#keys[model] = this.#extras[column]!;
    }
    this.#extras[column] = entering;
  }

  #allowed(pattern: number): boolean {
    const model = this.#modelOf[pattern]!;
    return this.#domains[model]!.has(pattern - this.first[model]!);
  }
}
