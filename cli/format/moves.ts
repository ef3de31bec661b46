/** Answers that moved between workers with their keys and values (KV), as `status` says it. */
import type { DeploymentReport, UnitReport } from '../../control/status.ts';
import type { DeviceReport } from '../../spec/device-report.ts';
import { type HandoversReport, type KeptReason, keptReasons } from '../../spec/moves-report.ts';
import { alikeLines } from './alike.ts';
import { formatBytes } from './quantities.ts';

/** One line a replica, and one for each peer; nothing where nothing has moved. */
export function moveLines(report: DeploymentReport, width: number): string[] {
  return alikeLines(report, width, 'answers that moved with their KV:', describeMoves);
}

/** What the pools of a device do, for `top`; nothing where it has none. */
export function devicePoolWords({ pools, moves }: Pick<DeviceReport, 'pools' | 'moves'>): string[] {
  return Object.entries(pools).map(([model, pool]) => {
    const { continued = 0, continued_tokens = 0 } = moves ?? {};
    const done =
      pool === 'prefill'
        ? handoverWords(moves?.handovers)
        : [`${continued} answers came with their KV, ${continued_tokens} tokens not computed again`];
    return `${pool} pool of ${model}: ${done.join('; ') || 'nothing handed over yet'}`;
  });
}

/** Of a replica of a prefill pool: what became of the answers whose prompts it computed. */
function handoverWords(handovers: HandoversReport | undefined): string[] {
  if (!handovers) return [];
  const { handed_over, tokens, early_tokens, pause_ms, kept, last_because } = handovers;
  const words: string[] = [];
  if (handed_over > 0) {
    const early = tokens === 0 ? 0 : Math.round((100 * Math.min(tokens, early_tokens)) / tokens);
    words.push(
      `${handed_over} handed over for decoding, ${tokens} tokens, ${early} % of them sent while prompts were computed, pause ${Math.round(pause_ms)} ms`,
    );
  }
  const reasons = keptReasons.filter((reason) => kept[reason] > 0);
  if (reasons.length > 0) {
    const counts = reasons.map((reason) => `${kept[reason]} ${keptWords[reason]}`).join(', ');
    words.push(`decoded here: ${counts} (last: ${last_because})`);
  }
  return words;
}

const keptWords: Record<KeptReason, string> = {
  short: 'too short',
  several: 'of several choices',
  no_peer: 'without a replica to go to',
  no_room: 'without room there',
  failed: 'that were not taken',
};

function describeMoves({ moves }: UnitReport): string | undefined {
  if (!moves) return undefined;
  const { moved, recomputed, continued, continued_tokens, missed, last_because, peers } = moves;
  const words: string[] = handoverWords(moves.handovers);
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
