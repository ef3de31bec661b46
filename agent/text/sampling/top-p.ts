import { type Candidates, retain, totalWeight } from './candidates.ts';

/**
 * Nucleus sampling (Holtzman et al. 2019, arXiv:1904.09751): keeps the smallest set of most probable
 * candidates whose probability reaches `top_p`; of equal ones the lower token id goes first.
 *
 * The boundary is found without a full sort: candidates below (1 − top_p) · total / count cannot belong
 * to the nucleus (together they weigh less than what it may leave out); among the others a selection by
 * weight (Hoare's quickselect, counting weight instead of elements) finds the last member in O(n).
 */
export function keepTopP(candidates: Candidates, top_p: number): void {
  if (top_p >= 1 || candidates.count <= 1) return;
  const total = totalWeight(candidates);
  const { weights, count } = candidates;
  const floor = ((1 - top_p) * total) / count;
  const order = new Int32Array(count);
  let n = 0;
  for (let index = 0; index < count; index++) if (weights[index]! >= floor) order[n++] = index;
  const last = lastOfNucleus(order.subarray(0, n), weights, top_p * total);
  const lastWeight = weights[last]!;
  retain(candidates, (index) => {
    const weight = weights[index]!;
    return weight > lastWeight || (weight === lastWeight && index <= last);
  });
}

/** Index of the candidate with which the cumulative weight, best first, reaches `wanted`. */
function lastOfNucleus(order: Int32Array, weights: Float64Array, wanted: number): number {
  let low = 0;
  let high = order.length - 1;
  let before = 0;
  while (low < high) {
    const pivot = order[low + ((high - low) >> 1)]!;
    let i = low - 1;
    let j = high + 1;
    for (;;) {
      do i++;
      while (better(weights, order[i]!, pivot));
      do j--;
      while (better(weights, pivot, order[j]!));
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

function better(weights: Float64Array, a: number, b: number): boolean {
  return weights[a]! > weights[b]! || (weights[a] === weights[b] && a < b);
}
