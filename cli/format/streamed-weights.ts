/** Native models whose weights lie in host memory, as `status` says it. */
import type { DeploymentReport, UnitReport } from '../../control/status.ts';
import { alikeLines } from './alike.ts';
import { formatBytes } from './quantities.ts';

/** One line for replicas that stream alike; nothing where no device worker has said that it does. */
export function streamedLines(report: DeploymentReport, width: number): string[] {
  return alikeLines(report, width, 'weights in host memory:', describeArena);
}

function describeArena({ arena_bytes }: UnitReport): string | undefined {
  if (arena_bytes === undefined) return undefined;
  return `streamed through ${formatBytes(arena_bytes)} of the device, which all such models there share`;
}
