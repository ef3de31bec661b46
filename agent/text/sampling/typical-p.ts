import { type Candidates, retain, totalWeight } from './candidates.ts';
import { lastOfPrefix } from './weighted-prefix.ts';

/**
 * Locally typical sampling (Meister et al. 2022, arXiv:2202.00666): keeps the tokens whose information is
 * closest to the entropy of the distribution, until their probability reaches `typical_p`.
 */
export function keepTypicalP(candidates: Candidates, typical_p: number): void {
  if (typical_p >= 1 || candidates.count <= 1) return;
  const { weights, count } = candidates;
  const total = totalWeight(candidates);
  const distance = new Float64Array(count);
  let entropy = 0;
  for (let index = 0; index < count; index++) {
    const p = weights[index]! / total;
    distance[index] = -Math.log(p);
    entropy += p * distance[index]!;
  }
  for (let index = 0; index < count; index++) distance[index] = Math.abs(distance[index]! - entropy);
  const closer = (a: number, b: number) =>
    distance[a]! < distance[b]! || (distance[a] === distance[b] && a < b);
  const order = Int32Array.from({ length: count }, (_, index) => index);
  const last = lastOfPrefix(order, weights, closer, typical_p * total);
  retain(candidates, (index) => index === last || closer(index, last));
}
