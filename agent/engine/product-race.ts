import { availableParallelism } from 'node:os';
import type { Ggml } from '../../native/ggml.ts';
import type { Pointer } from '../../native/signature.ts';
import { CpuCompute } from '../backend/cpu/cpu-compute.ts';
import type { KernelUse } from './kernel-proof.ts';
import { TimedProduct } from './timed-product.ts';

/** Rows of decoding alone, of a few sequences, of a batch, and of a part of a prompt. */
const row_counts = [1, 4, 16, 64] as const;
/** Weights of each contestant: lower, they lie in caches and not in memory; higher, a first start takes more of it. */
const weight_bytes = 128e6;
/** Rows of the matrices, about what a layer has; lower: threads meet more often than in a model. */
const n = 4096;
/** Of a mixture, about what a layer has: experts, those of a row, and rows of the matrix of each. */
const mixture = { experts: 16, used: 4, n: 1024 };
/** Lower: noise of neighbours decides; higher: a first start takes longer. Few rows take a millisecond a round. */
const rounds_max = 24;
const rounds_min = 3;
const race_ms_max = 400;
/**
 * Races until ours counts as slower, the best rounds of all of them counting. Lower: a neighbour that is busy for a
 * second decides for ggml's; higher: a first start takes longer where ggml's are faster.
 */
const attempts_max = 3;
/**
 * Of one number of rows, ours may take so much longer than ggml's; and so much where all together are that much faster,
 * since weights lie in one layout for all. Lower: noise decides for ggml's; higher: some products may be slower than
 * before.
 */
const slower_max = 1.1;
const bought = { slower_max: 1.25, gain_min: 1.3 };
const threads_max = 16;

/** What of weights decides how fast they are multiplied. */
export interface RacedWeight {
  type: string;
  /** Elements of a row. */
  width: number;
  use: KernelUse;
}

/**
 * Two layouts of weights against each other on all cores of this process, in turns; the best round of each counts.
 * Takes a second; where ours seems to be slower, three, since a neighbour may have been busy.
 * @returns whether `ours` is faster on average over all numbers of rows, and for none of them much slower for it
 * @throws HpcserveError E_NATIVE_MEMORY
 */
export function isFaster(
  ggml: Ggml,
  { type, width, use }: RacedWeight,
  ours: Pointer,
  theirs: Pointer,
): boolean {
  const threads = Math.min(threads_max, availableParallelism());
  const compute = new CpuCompute(ggml, { threads, fixed_paths: false });
  const matrix = { type, k: width, ...(use === 'experts' ? mixture : { n }) };
  const contestants: TimedProduct[] = [];
  try {
    for (const layout of [ours, theirs])
      contestants.push(new TimedProduct(ggml, compute, layout, matrix, row_counts, weight_bytes));
    const best = row_counts.map(() => contestants.map(() => Number.POSITIVE_INFINITY));
    for (let attempt = 0; attempt < attempts_max; attempt++) {
      row_counts.forEach((m, index) => {
        improve(best[index]!, contestants, m);
      });
      if (isWon(best.map(([own, other]) => own! / other!))) return true;
    }
    return false;
  } finally {
    for (const contestant of contestants) contestant.free();
    compute.free();
  }
}

/** @param ratios what ours takes over what ggml's takes, for each number of rows */
export function isWon(ratios: readonly number[]): boolean {
  const mean_gain = Math.exp(-ratios.reduce((sum, ratio) => sum + Math.log(ratio), 0) / ratios.length);
  const allowed = mean_gain >= bought.gain_min ? bought.slower_max : slower_max;
  return mean_gain > 1 && Math.max(...ratios) <= allowed;
}

/** Which of two is first changes with each round: what one leaves in caches and clocks, both have. */
export function inTurn(round: number): readonly [number, number] {
  return round % 2 === 0 ? [0, 1] : [1, 0];
}

/** @param best milliseconds of each contestant so far */
function improve(best: number[], contestants: readonly TimedProduct[], m: number): void {
  const started = performance.now();
  // The first round warms up.
  for (let round = 0; round <= rounds_max; round++) {
    if (round > rounds_min && performance.now() - started > race_ms_max) break;
    for (const index of inTurn(round)) {
      const took_ms = contestants[index]!.run_ms(m);
      if (round > 0) best[index] = Math.min(best[index]!, took_ms);
    }
  }
}
