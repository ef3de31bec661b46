/** Native models whose weights lie in host memory, as `status` says it. */
import type { DeploymentReport, UnitReport } from '../../control/status.ts';
import type { StreamedWeights } from '../../spec/streamed-weights.ts';
import { alikeLines } from './alike.ts';
import { formatBytes } from './quantities.ts';

/** One line for replicas that stream alike; nothing where no device worker has said that it does. */
export function streamedLines(report: DeploymentReport, width: number): string[] {
  return alikeLines(report, width, 'weights in host memory:', describeArena);
}

function describeArena({ streamed }: UnitReport): string | undefined {
  if (streamed === undefined) return undefined;
  const through = `streamed through ${formatBytes(streamed.arena_bytes)} of the device, which all such models there share`;
  return [through, ...streamedWords(streamed)].join('; ');
}

/** What stays, what a step brings, and at what rate. */
export function streamedWords({
  resident_bytes,
  step_bytes,
  experts_at_hand,
  link_bytes_per_s,
  because = [],
}: StreamedWeights): string[] {
  const rate = link_bytes_per_s === undefined ? '' : ` at ${formatBytes(roughly(link_bytes_per_s))}/s`;
  return [
    ...(resident_bytes > 0 ? [`layers of ${formatBytes(resident_bytes)} stay there`] : []),
    step_bytes > 0
      ? `a step brings ${describeStep(step_bytes, experts_at_hand)}${rate}`
      : 'no step brings any',
    ...(experts_at_hand === undefined
      ? []
      : [`${Math.round(100 * experts_at_hand)} % of the experts that are needed are at hand`]),
    ...because,
  ];
}

/** Of a mixture it differs from step to step. */
function describeStep(bytes: number, experts_at_hand: number | undefined): string {
  return experts_at_hand === undefined ? formatBytes(bytes) : `${formatBytes(roughly(bytes))} on average`;
}

/** Links differ a little from one moment to the next: what is alike is to read alike. */
function roughly(value: number): number {
  return Number(value.toPrecision(2));
}
