/**
 * Of elements in a strict order, best first: the element with which the cumulative weight reaches `wanted`.
 * Hoare's quickselect that counts weight instead of elements: O(n) on average, where sorting takes O(n log n).
 *
 * @param order indices into weights, not empty; reordered
 * @param better a strict total order
 */
export function lastOfPrefix(
  order: Int32Array,
  weights: Float64Array,
  better: (a: number, b: number) => boolean,
  wanted: number,
): number {
  let low = 0;
  let high = order.length - 1;
  let before = 0;
  while (low < high) {
    const pivot = order[low + ((high - low) >> 1)]!;
    let i = low - 1;
    let j = high + 1;
    for (;;) {
      do i++;
      while (better(order[i]!, pivot));
      do j--;
      while (better(pivot, order[j]!));
      if (i >= j) break;
      const kept = order[i]!;
      order[i] = order[j]!;
      order[j] = kept;
    }
    // Everything in [low, j] is better than everything in [j + 1, high].
    let sum = 0;
    for (let at = low; at <= j; at++) sum += weights[order[at]!]!;
    if (before + sum >= wanted) {
      high = j;
    } else {
      before += sum;
      low = j + 1;
    }
  }
  return order[low]!;
}
