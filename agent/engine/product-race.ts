import { availableParallelism } from 'node:os';
import type { Ggml } from '../../native/ggml.ts';
import type { Pointer } from '../../native/signature.ts';
import { CpuCompute } from '../backend/cpu/cpu-compute.ts';
import { TimedProduct } from './timed-product.ts';

/** Rows of decoding alone, of a few sequences, of a batch, and of a part of a prompt. */
const row_counts = [1, 4, 16, 64] as const;
/** Weights of each contestant: lower, they lie in caches and not in memory; higher, a first start takes more of it. */
const weight_bytes = 128e6;
/** Rows of the matrices, about what a layer has; lower: threads meet more often than in a model. */
const n = 4096;
/** Lower: noise of neighbours decides; higher: a first start takes longer. Few rows take a millisecond a round. */
const rounds_max = 24;
const rounds_min = 3;
const race_ms_max = 400;
/** Lower: noise decides for ggml's; higher: a product may be so much slower than before, where others are faster. */
const slower_max = 1.1;
const threads_max = 16;

/**
 * Two layouts of weights against each other on all cores of this process, in turns; the best round of each counts.
 * Takes a second at most.
 * @param width elements of a row of the weights
 * @returns whether `ours` is faster on average over all numbers of rows, and for none of them much slower
 * @throws HpcserveError E_NATIVE_MEMORY
 */
export function isFaster(ggml: Ggml, type: string, width: number, ours: Pointer, theirs: Pointer): boolean {
  const threads = Math.min(threads_max, availableParallelism());
  const compute = new CpuCompute(ggml, { threads, fixed_paths: false });
  const contestants: TimedProduct[] = [];
  try {
    for (const layout of [ours, theirs])
      contestants.push(
        new TimedProduct(ggml, compute, layout, { type, n, k: width }, row_counts, weight_bytes),
      );
    const ratios = row_counts.map((m) => ratioOf(contestants, m));
    const gain = ratios.reduce((sum, ratio) => sum - Math.log(ratio), 0);
    return gain > 0 && ratios.every((ratio) => ratio <= slower_max);
  } finally {
    for (const contestant of contestants) contestant.free();
    compute.free();
  }
}

/** Time of the first over that of the second. */
function ratioOf(contestants: readonly TimedProduct[], m: number): number {
  const best = contestants.map(() => Number.POSITIVE_INFINITY);
  const started = performance.now();
  // The first round warms up.
  for (let round = 0; round <= rounds_max; round++) {
    if (round > rounds_min && performance.now() - started > race_ms_max) break;
    for (const [index, contestant] of contestants.entries()) {
      const took_ms = contestant.run_ms(m);
      if (round > 0) best[index] = Math.min(best[index]!, took_ms);
    }
  }
  return best[0]! / best[1]!;
}
