import type { SparseDomain } from '../cp/sparse-domain.ts';

/**
 * The patterns that are left at a node, side by side: one array for the costs and one for each type, so that a pivot
 * goes over each from its start to its end.
 */
export class OpenColumns {
  /** Where the patterns of each model begin. */
  readonly first: Int32Array;
  /** Number of each pattern. */
  readonly patterns: Int32Array;
  /** What `measure` found: what each costs at the prices, and the product of its devices and the row. */
  readonly reduced: Float64Array;
  readonly slopes: Float64Array;

  readonly #costs: Float64Array;
  readonly #devices: readonly Float64Array[];
  #count = 0;

  constructor(patterns: number, models: number, types: number) {
    this.first = new Int32Array(models + 1);
    this.patterns = new Int32Array(patterns);
    this.reduced = new Float64Array(patterns);
    this.slopes = new Float64Array(patterns);
    this.#costs = new Float64Array(patterns);
    this.#devices = Array.from({ length: types }, () => new Float64Array(patterns));
  }

  /** @param first and `data` as in `Relaxation` */
  take(domains: readonly SparseDomain[], first: Int32Array, data: Float64Array): void {
    const types = this.#devices.length;
    let count = 0;
    for (let model = 0; model < domains.length; model++) {
      this.first[model] = count;
      const { dense, size } = domains[model]!;
      const start = first[model]!;
      for (let index = 0; index < size; index++) this.patterns[count++] = start + dense[index]!;
    }
    this.first[domains.length] = count;
    this.#count = count;
    gather(this.patterns, count, data, types + 1, 0, this.#costs);
    for (let type = 0; type < types; type++)
      gather(this.patterns, count, data, types + 1, type + 1, this.#devices[type]!);
  }

  measure(prices: Float64Array, row: Float64Array): void {
    const count = this.#count;
    const { reduced, slopes } = this;
    slopes.fill(0, 0, count);
    reduced.set(this.#costs.subarray(0, count));
    for (let type = 0; type < prices.length; type++)
      addBoth(this.#devices[type]!, count, prices[type]!, reduced, row[type]!, slopes);
  }
}

function gather(
  patterns: Int32Array,
  count: number,
  data: Float64Array,
  stride: number,
  at: number,
  into: Float64Array,
): void {
  for (let index = 0; index < count; index++) into[index] = data[patterns[index]! * stride + at]!;
}

function addBoth(
  devices: Float64Array,
  count: number,
  price: number,
  reduced: Float64Array,
  along: number,
  slopes: Float64Array,
): void {
  if (price === 0 && along === 0) return;
  for (let index = 0; index < count; index++) {
    const taken = devices[index]!;
    reduced[index]! += price * taken;
    slopes[index]! += along * taken;
  }
}
