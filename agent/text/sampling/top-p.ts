import { type Candidates, retain, totalWeight } from './candidates.ts';
import { lastOfPrefix } from './weighted-prefix.ts';

/**
 * Nucleus sampling (Holtzman et al. 2019, arXiv:1904.09751): keeps the smallest set of most probable
 * candidates whose probability reaches `top_p`; of equal ones the lower token id goes first.
 *
 * The boundary is found without a full sort: candidates below (1 − top_p) · total / count cannot belong
 * to the nucleus (together they weigh less than what it may leave out); among the others a
 * selection by weight finds the last member in O(n).
 */
export function keepTopP(candidates: Candidates, top_p: number): void {
  if (top_p >= 1 || candidates.count <= 1) return;
  const total = totalWeight(candidates);
  const { weights, count } = candidates;
  const floor = ((1 - top_p) * total) / count;
  const order = new Int32Array(count);
  let n = 0;
  for (let index = 0; index < count; index++) if (weights[index]! >= floor) order[n++] = index;
  const better = (a: number, b: number) => weights[a]! > weights[b]! || (weights[a] === weights[b] && a < b);
  const last = lastOfPrefix(order.subarray(0, n), weights, better, top_p * total);
  const lastWeight = weights[last]!;
  retain(candidates, (index) => {
    const weight = weights[index]!;
    return weight > lastWeight || (weight === lastWeight && index <= last);
  });
}
