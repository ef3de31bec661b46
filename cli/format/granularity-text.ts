import type { SeenPipeline } from '../../control/pipelines/granularity-file.ts';
import { formatDuration } from './quantities.ts';

/** `cut-0 has 2 of 2 to 4 stages: 1 × 2 stages score best (3.1 requests/s, CV 1.2, 0 waiting)`, and its last change. */
export function granularityLines(
  { unit, stages, stages_min, stages_max, because, changing_to, last, ...seen }: SeenPipeline,
  now_ms: number,
): string[] {
  const { rate_per_s, cv, waiting, congested_stage, stalled_ms } = seen;
  const load = `${rate_per_s.toFixed(1)} requests/s, CV ${cv.toFixed(1)}, ${Math.round(waiting)} waiting`;
  const stall =
    stalled_ms === undefined ? '' : `, stalled for ${formatDuration(Math.max(0, now_ms - stalled_ms))}`;
  const queue = congested_stage === undefined ? '' : `, stage ${congested_stage} is congested`;
  const next = changing_to === stages ? 'another cut' : changing_to;
  const change = next === undefined ? '' : ` and is getting ${next}`;
  const lines = [
    `${unit} has ${stages} of ${stages_min} to ${stages_max} stages${change}: ${because} (${load}${stall}${queue})`,
  ];
  if (last === undefined) return lines;
  const age = formatDuration(Math.max(0, now_ms - last.at_ms));
  const isRecut = last.from === last.to;
  const went = isRecut
    ? `was cut anew into ${last.to} stages`
    : `went from ${last.from} to ${last.to} stages`;
  const meant = isRecut
    ? `was to be cut anew into ${last.to} stages`
    : `was to go from ${last.from} to ${last.to} stages`;
  const what = last.refused === undefined ? went : `${meant} and did not (${last.refused})`;
  return [...lines, `${unit} ${what} ${age} ago: ${last.because}`];
}
