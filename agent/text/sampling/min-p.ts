import { type Candidates, retain } from './candidates.ts';

/** Drops candidates less probable than `min_p` times the most probable one (Nguyen et al. 2024, arXiv:2407.01082). */
export function keepMinP(candidates: Candidates, min_p: number): void {
  if (min_p <= 0) return;
  const { weights } = candidates;
  let largest = 0;
  for (let index = 0; index < candidates.count; index++) largest = Math.max(largest, weights[index]!);
  const least = min_p * largest;
  retain(candidates, (index) => weights[index]! >= least);
}
