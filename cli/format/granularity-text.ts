import type { SeenPipeline } from '../../control/pipelines/granularity-file.ts';
import { formatDuration } from './quantities.ts';

/** `cut-0 has 2 of 2 to 4 stages: 1 × 2 stages score best (3.1 requests/s, CV 1.2, 0 waiting)`, and its last change. */
export function granularityLines(
  { unit, stages, stages_min, stages_max, because, changing_to, last, ...seen }: SeenPipeline,
  now_ms: number,
): string[] {
  const { rate_per_s, cv, waiting } = seen;
  const load = `${rate_per_s.toFixed(1)} requests/s, CV ${cv.toFixed(1)}, ${Math.round(waiting)} waiting`;
  const change = changing_to === undefined ? '' : ` and is getting ${changing_to}`;
  const lines = [
    `${unit} has ${stages} of ${stages_min} to ${stages_max} stages${change}: ${because} (${load})`,
  ];
  if (last === undefined) return lines;
  const age = formatDuration(Math.max(0, now_ms - last.at_ms));
  const what =
    last.refused === undefined
      ? `went from ${last.from} to ${last.to} stages`
      : `was to go from ${last.from} to ${last.to} stages and did not (${last.refused})`;
  return [...lines, `${unit} ${what} ${age} ago: ${last.because}`];
}
