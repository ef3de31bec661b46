/** Percentiles of samples, plain and weighted. */

export interface Distribution {
  mean: number;
  p50: number;
  p90: number;
  p95: number;
  p99: number;
  max: number;
}

/** NaN entries (requests that never got that far) are left out; all NaN where nothing remains. */
export function distributionOf(values: ArrayLike<number>): Distribution {
  const sorted = Float64Array.from(values)
    .filter((value) => !Number.isNaN(value))
    .sort();
  if (sorted.length === 0) return empty;
  let total = 0;
  for (const value of sorted) total += value;
  const at = (share: number): number => quantile(sorted, share);
  return {
    mean: total / sorted.length,
    p50: at(0.5),
    p90: at(0.9),
    p95: at(0.95),
    p99: at(0.99),
    max: sorted.at(-1)!,
  };
}

/** The same of values that each stand for a number of samples. */
export function weightedDistributionOf(values: readonly number[], weights: readonly number[]): Distribution {
  const order = Uint32Array.from(values.keys()).sort((a, b) => values[a]! - values[b]!);
  let total = 0;
  let sum = 0;
  for (const index of order) {
    total += weights[index]!;
    sum += weights[index]! * values[index]!;
  }
  if (total === 0) return empty;
  const at = (share: number): number => {
    let seen = 0;
    for (const index of order) {
      seen += weights[index]!;
      if (seen >= share * total) return values[index]!;
    }
    return values[order.at(-1)!]!;
  };
  return {
    mean: sum / total,
    p50: at(0.5),
    p90: at(0.9),
    p95: at(0.95),
    p99: at(0.99),
    max: values[order.at(-1)!]!,
  };
}

/** Linear interpolation between order statistics (Hyndman and Fan's type 7). */
export function quantile(sorted: Float64Array, share: number): number {
  if (sorted.length === 0) return Number.NaN;
  const position = share * (sorted.length - 1);
  const low = Math.floor(position);
  const high = Math.ceil(position);
  return sorted[low]! + (sorted[high]! - sorted[low]!) * (position - low);
}

const empty: Distribution = {
  mean: Number.NaN,
  p50: Number.NaN,
  p90: Number.NaN,
  p95: Number.NaN,
  p99: Number.NaN,
  max: Number.NaN,
};
