/** Plots made of characters, for terminals and logs. */

export interface Curve {
  label: string;
  /** One character that marks it. */
  mark: string;
  /** Values in rising order. */
  sorted: Float64Array;
}

/**
 * Cumulative distributions: the share of values up to x, over a logarithmic axis of x. `width` and `height`
 * are of the plotting area, in characters.
 */
export function plotCdf(
  curves: readonly Curve[],
  { width, height, unit }: { width: number; height: number; unit: string },
): string[] {
  const drawn = curves.filter(({ sorted }) => sorted.length > 0);
  if (drawn.length === 0) return [];
  const low = Math.max(1e-3, Math.min(...drawn.map(({ sorted }) => sorted[0]!)));
  const high = Math.max(low * 1.01, ...drawn.map(({ sorted }) => sorted.at(-1)!));
  const at = (column: number): number => low * (high / low) ** (column / (width - 1));
  const grid = Array.from({ length: height }, () => Array<string>(width).fill(' '));
  for (const { sorted, mark } of drawn)
    for (let column = 0; column < width; column++) {
      const share = countUpTo(sorted, at(column)) / sorted.length;
      const row = Math.round((1 - share) * (height - 1));
      grid[row]![column] = mark;
    }
  const lines = grid.map((cells, row) => {
    const share = 100 * (1 - row / (height - 1));
    const label = row % 5 === 0 || row === height - 1 ? `${share.toFixed(0).padStart(3)}%` : '    ';
    return `${label} │${cells.join('').trimEnd()}`;
  });
  const ends = [figure(low), figure(at((width - 1) / 2)), figure(high)] as const;
  const left = Math.max(1, Math.floor(width / 2 - ends[0].length - ends[1].length / 2));
  const right = Math.max(1, width - ends[0].length - left - ends[1].length - ends[2].length);
  return [
    ...lines,
    `     └${'─'.repeat(width)}`,
    `      ${ends[0]}${' '.repeat(left)}${ends[1]}${' '.repeat(right)}${ends[2]} ${unit}`,
    `      ${drawn.map(({ label, mark }) => `${mark} ${label}`).join('   ')}`,
  ];
}

function countUpTo(sorted: Float64Array, value: number): number {
  let low = 0;
  let high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle]! <= value * (1 + 1e-12)) low = middle + 1;
    else high = middle;
  }
  return low;
}

function figure(value: number): string {
  return value >= 100 ? value.toFixed(0) : value.toPrecision(2);
}
