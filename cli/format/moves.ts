/** Answers that moved between workers with their keys and values (KV), as `status` says it. */
import type { DeploymentReport, UnitReport } from '../../control/status.ts';
import { alikeLines } from './alike.ts';
import { formatBytes } from './quantities.ts';

/** One line a replica, and one for each peer; nothing where nothing has moved. */
export function moveLines(report: DeploymentReport, width: number): string[] {
  return alikeLines(report, width, 'answers that moved with their KV:', describeMoves);
}

function describeMoves({ moves }: UnitReport): string | undefined {
  if (!moves) return undefined;
  const { moved, recomputed, continued, continued_tokens, missed, last_because, peers } = moves;
  const words: string[] = [];
  if (moved > 0) words.push(`${moved} left`);
  if (recomputed > 0) words.push(`${recomputed} without it (${last_because})`);
  if (continued > 0) words.push(`${continued} came, ${continued_tokens} tokens not computed again`);
  if (missed > 0) words.push(`${missed} came and found none of it`);
  for (const { node, way, bytes, busy_ms, fallbacks, last_fallback } of peers) {
    if (bytes > 0)
      words.push(
        `${formatBytes(bytes)} to ${node} by ${way ?? 'no way now'}, ${formatBytes((1000 * bytes) / busy_ms)}/s`,
      );
    if (fallbacks > 0) words.push(`FELL BACK ${fallbacks} times to ${node}: ${last_fallback}`);
  }
  return words.length === 0 ? undefined : words.join('; ');
}
