/**
 * e^x for softmax weights, several times faster than Math.exp: 2^(i/2048) from a table, the rest of the
 * exponent by one term more of the series. The relative error is below 8e-8, an order below what a logit
 * of ten loses by being a 32-bit float. Exact at 0; below −700 the answer is 0.
 */
const steps = 2048;
const table = Float64Array.from({ length: steps }, (_, index) => 2 ** (index / steps));
/** Powers of two from 2^−1022 on. */
const lowest = -1022;
const powers = Float64Array.from({ length: 2046 }, (_, index) => 2 ** (index + lowest));
const scale = steps / Math.LN2;
const unit = Math.LN2 / steps;

/** @param x at most 700 */
export function fastExp(x: number): number {
  if (!(x > -700)) return 0;
  const index = (x * scale) | 0;
  const rest = x - index * unit;
  return table[index & (steps - 1)]! * powers[(index >> 11) - lowest]! * (1 + rest + 0.5 * rest * rest);
}
