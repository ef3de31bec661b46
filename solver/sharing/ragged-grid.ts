/** A table that was measured only where things fit, made whole. */
import type { DecodeSample } from './profile-samples.ts';

/**
 * Times for every context (row) and batch (column). A place without a sample continues its row: linearly between two
 * known batches, with the last known slope beyond them (an iteration grows by the same with each further sequence once
 * it does arithmetic), and never below the same batch at the next shorter context.
 * @returns row-major, contexts.length × batches.length
 */
export function completeRows(
  contexts: Float64Array,
  batches: Float64Array,
  samples: readonly DecodeSample[],
): Float64Array {
  const width = batches.length;
  const grid = new Float64Array(contexts.length * width).fill(Number.NaN);
  for (const { batch, tokens, ms } of samples)
    grid[contexts.indexOf(tokens) * width + batches.indexOf(batch)] = ms;
  for (let row = 0; row < contexts.length; row++) {
    const known: number[] = [];
    for (let column = 0; column < width; column++)
      if (!Number.isNaN(grid[row * width + column]!)) known.push(column);
    const times = known.map((column) => grid[row * width + column]!);
    for (let column = 0; column < width; column++) {
      if (known.includes(column)) continue;
      const continued = continuation(
        known.map((at) => batches[at]!),
        times,
        batches[column]!,
      );
      const shorter = row > 0 ? grid[(row - 1) * width + column]! : 0;
      grid[row * width + column] = Math.max(continued, shorter);
    }
  }
  return grid;
}

function continuation(at: readonly number[], times: readonly number[], value: number): number {
  if (at.length === 1) return times[0]!;
  let left = 0;
  while (left < at.length - 2 && at[left + 1]! <= value) left++;
  const slope = Math.max(0, (times[left + 1]! - times[left]!) / (at[left + 1]! - at[left]!));
  // Before the first known batch a step is bound by reading the weights: no less than half of it.
  return Math.max(times[left]! + slope * (value - at[left]!), times[0]! / 2);
}
