/**
 * What iterations of a streamed model take, from what earlier ones took: the arithmetic by their rows, measured apart
 * from the time that it waited for weights, and the link by the bytes of a step. Copies of one layer overlap with the
 * arithmetic of another, so an iteration takes the longer of both. Immutable.
 */

export interface MeasuredPace {
  /** Rows of a batch (tokens of prompts, and one of each sequence that decodes), and what they took; by rows. */
  points: readonly PacePoint[];
  /** Of a step's weights, at the rate that the link gave last. */
  link_ms: number;
}

interface PacePoint {
  rows: number;
  ms: number;
}

export interface ObservedStep {
  rows: number;
  /** Arithmetic: all of its time but what it waited for weights. */
  compute_ms: number;
  /** Bytes that every step brings, and the rate at which they come; absent: not known yet. */
  step_bytes: number;
  link_bytes_per_s?: number | undefined;
}

/** Weight of an iteration. Lower: one that was disturbed says less; higher: follows longer sequences sooner. */
const observed_weight = 0.25;

/** Iterations of about as many rows are one point: of powers of two the nearest. */
export function observeStep(before: MeasuredPace | undefined, step: ObservedStep): MeasuredPace {
  const { rows, compute_ms, step_bytes, link_bytes_per_s } = step;
  const link_ms =
    link_bytes_per_s === undefined ? (before?.link_ms ?? 0) : (1000 * step_bytes) / link_bytes_per_s;
  const points = before?.points ?? [];
  if (rows <= 0 || !(compute_ms > 0)) return { points, link_ms };
  const at = points.findIndex((point) => bucketOf(point.rows) === bucketOf(rows));
  if (at < 0) {
    const all = [...points, { rows, ms: compute_ms }];
    return { points: all.sort((a, b) => a.rows - b.rows), link_ms };
  }
  const known = points[at]!;
  const toward = (from: number, to: number): number => from + observed_weight * (to - from);
  return {
    points: points.with(at, { rows: toward(known.rows, rows), ms: toward(known.ms, compute_ms) }),
    link_ms,
  };
}

/** What an iteration of so many rows takes; does not fall with them. Undefined where none was seen. */
export function pace_ms({ points, link_ms }: MeasuredPace, rows: number): number | undefined {
  if (points.length === 0) return undefined;
  return Math.max(link_ms, compute_ms(points, rows));
}

/** What it takes to compute so many rows, whatever the link gives. Undefined where nothing was seen. */
export function computeTime_ms({ points }: MeasuredPace, rows: number): number | undefined {
  return points.length === 0 ? undefined : compute_ms(points, rows);
}

/** Linear between points; beyond the last, as much a row as it is there, which is not too little. */
function compute_ms(points: readonly PacePoint[], rows: number): number {
  let [low, high_ms] = [points[0]!, points[0]!.ms];
  for (const point of points) {
    // More rows take no less: what was seen otherwise was a disturbance.
    const ms = Math.max(high_ms, point.ms);
    if (point.rows >= rows) {
      const share = point.rows > low.rows ? Math.max(0, rows - low.rows) / (point.rows - low.rows) : 1;
      return high_ms + share * (ms - high_ms);
    }
    low = point;
    high_ms = ms;
  }
  return (high_ms * rows) / low.rows;
}

function bucketOf(rows: number): number {
  return Math.round(Math.log2(rows));
}
