/**
 * What rides along with a chunk of a prompt: an iteration reads the weights once for all that it computes, so that
 * further prompts and the decode steps of the same instance cost less together than apart. They do where everybody else
 * can wait.
 */
import type { Lane } from './lanes.ts';
import { type Iteration, promptsSpare, streamsSlack } from './next-iteration.ts';
import type { SharingSettings } from './settings.ts';

export interface SharedIteration {
  /** Prompt tokens of the whole iteration; those of the chosen prompt come first. */
  prefill_tokens: number;
  /** The instance's decode step is part of it. */
  decode: boolean;
  /** Estimated as if nothing were saved, overestimate included. */
  ms: number;
}

/** @param next the choice of `nextIteration` on these lanes */
export function shareIteration(
  lanes: readonly Lane[],
  next: Iteration,
  now_ms: number,
  settings: SharingSettings,
): SharedIteration {
  const { prompt } = next;
  if (prompt === undefined) return { prefill_tokens: 0, decode: true, ms: next.ms };
  const lane = lanes[next.lane]!;
  const others = lanes.filter((other) => other !== lane);
  // Beyond the chosen chunk: others' streams wait for all of it, prompts for what is more than their own work.
  const spare_ms = Math.min(
    streamsSlack(others, now_ms) - next.ms,
    promptsSpare([...others, { ...lane, batch: 0 }], now_ms, settings),
  );
  let { ms, tokens: prefill_tokens } = next;
  const decode = lane.batch > 0 && lane.decode_ms <= spare_ms;
  if (decode) ms += lane.decode_ms;
  const waiting_tokens = lane.prompts.reduce(
    (sum, { left_tokens, available_at_ms }) => sum + (available_at_ms <= now_ms ? left_tokens : 0),
    0,
  );
  const filled = Math.min(waiting_tokens, lane.chunk_tokens_max);
  const more_ms =
    (lane.profile.prefill_ms(filled) - lane.profile.prefill_ms(prefill_tokens)) * (1 + settings.overestimate);
  if (filled > prefill_tokens && ms + more_ms - next.ms <= spare_ms) {
    prefill_tokens = filled;
    ms += Math.max(0, more_ms);
  }
  return { prefill_tokens, decode, ms };
}
