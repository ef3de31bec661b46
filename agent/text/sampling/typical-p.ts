import { type Candidates, retain, totalWeight } from './candidates.ts';

/**
 * Locally typical sampling (Meister et al. 2022, arXiv:2202.00666): keeps the tokens whose information is
 * closest to the entropy of the distribution, until their probability reaches `typical_p`.
 */
export function keepTypicalP(candidates: Candidates, typical_p: number): void {
  if (typical_p >= 1 || candidates.count <= 1) return;
  const { weights, count } = candidates;
  const total = totalWeight(candidates);
  let entropy = 0;
  for (let index = 0; index < count; index++) {
    const p = weights[index]! / total;
    entropy -= p * Math.log(p);
  }
  const distance = new Float64Array(count);
  for (let index = 0; index < count; index++)
    distance[index] = Math.abs(-Math.log(weights[index]! / total) - entropy);
  const order = Int32Array.from({ length: count }, (_, index) => index);
  order.sort((a, b) => distance[a]! - distance[b]! || a - b);
  const kept = new Uint8Array(count);
  let sum = 0;
  for (const index of order) {
    kept[index] = 1;
    sum += weights[index]!;
    if (sum >= typical_p * total) break;
  }
  retain(candidates, (index) => kept[index] === 1);
}
