/** Real iterations scatter around the profile: log-normal factors of median 1, by seed. */
import { normal, seededRandom } from '../simulator/random.ts';

export function iterationNoise(deviation: number, seed: number): () => number {
  if (deviation === 0) return () => 1;
  const random = seededRandom(seed);
  return () => Math.exp(deviation * normal(random));
}
