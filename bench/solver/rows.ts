import type { BenchResult } from '../result.ts';

export function row(
  what: string,
  ours: number,
  unit: string,
  bar = '',
  holds: boolean | null = null,
  peer = '',
  theirs: number | null = null,
): BenchResult {
  return { what, unit, ours, peer, theirs, ratio: theirs === null ? null : theirs / ours, bar, holds };
}

/** NaN of nothing. */
export function median(values: readonly number[]): number {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 === 1 ? sorted[middle]! : (sorted[middle - 1]! + sorted[middle]!) / 2;
}
