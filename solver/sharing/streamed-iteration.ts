/**
 * What an iteration computes of a model whose weights are streamed (C2CServe). They cross the link once for all of it,
 * so what decodes and what is prompted go together, and the chunk of prompts is what the controller of
 * `solver/streaming` says: all that is free beside the link, and more as far as everybody can wait.
 */
import { chunk_settings, nextChunk_tokens } from '../streaming/chunk-control.ts';
import type { Lane } from './lanes.ts';
import { type Iteration, promptsSpare, streamsSlack } from './next-iteration.ts';
import type { SharingSettings } from './settings.ts';
import type { SharedIteration } from './shared-iteration.ts';

/**
 * @param next the choice of `nextIteration` on these lanes
 * @param pace_ms of an iteration of so many rows, as measured
 */
export function streamedIteration(
  lanes: readonly Lane[],
  next: Iteration,
  pace_ms: (rows: number) => number,
  now_ms: number,
  settings: SharingSettings,
): SharedIteration {
  const lane = lanes[next.lane]!;
  const others = lanes.filter((other) => other !== lane);
  const iteration_ms = (input_tokens: number): number =>
    pace_ms(Math.max(1, lane.batch + input_tokens)) * (1 + settings.overestimate);
  const waiting_tokens = lane.prompts.reduce(
    (sum, { left_tokens, available_at_ms }) => sum + (available_at_ms <= now_ms ? left_tokens : 0),
    0,
  );
  const isBackground = (next.prompt ?? lane).background;
  const budget_ms = Math.min(
    lane.batch > 0 ? lane.deadline_ms - now_ms : Number.POSITIVE_INFINITY,
    streamsSlack(others, now_ms),
    isBackground ? promptsSpare(others, now_ms, settings) : Number.POSITIVE_INFINITY,
  );
  const chunks = { ...chunk_settings, chunk_tokens_max: lane.chunk_tokens_max };
  const tokens = nextChunk_tokens({ iteration_ms, waiting_tokens, budget_ms, settings: chunks });
  // It is a decode step's turn: prompts may ride along where that costs nobody a token, and have turns of their own.
  const free_ms = (1 + chunks.free_share) * iteration_ms(0);
  const isLate = iteration_ms(tokens) > Math.max(chunks.budget_share * budget_ms, free_ms);
  const prefill_tokens = next.prompt === undefined && isLate ? 0 : tokens;
  return { prefill_tokens, decode: lane.batch > 0, ms: iteration_ms(prefill_tokens) };
}
