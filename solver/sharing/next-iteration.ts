/**
 * Whose turn it is (LLM-Mesh §5.1): one iteration at a time goes to the instance whose most urgent request has the
 * least headroom. Prompts are cut into chunks, so that nobody waits for a long one. Requests that nothing is promised
 * to take their turns by the same order, but only in time that every promise can spare.
 */
import type { Lane, WaitingPrompt } from './lanes.ts';
import type { SharingSettings } from './settings.ts';

export interface Iteration {
  /** Index into the lanes. */
  lane: number;
  /** The prompt of which `tokens` are computed; absent: a decode step of the lane's batch. */
  prompt?: WaitingPrompt;
  tokens: number;
  /** Estimated, overestimate included. */
  ms: number;
}

/** Nothing can run before `at_ms`; Infinity: nothing waits at all. */
export interface Idle {
  at_ms: number;
}

export function nextIteration(
  lanes: readonly Lane[],
  now_ms: number,
  settings: SharingSettings,
): Iteration | Idle {
  const next = leastHeadroom(lanes, now_ms, settings, true);
  if ('at_ms' in next || !(next.prompt ?? lanes[next.lane]!).background) return next;
  if (next.ms <= spareTime(lanes, now_ms, settings)) return next;
  const promised = leastHeadroom(lanes, now_ms, settings, false);
  return 'at_ms' in promised ? next : promised;
}

function leastHeadroom(
  lanes: readonly Lane[],
  now_ms: number,
  settings: SharingSettings,
  background: boolean,
): Iteration | Idle {
  let urgent = -1;
  let urgent_ms = Number.POSITIVE_INFINITY;
  let waiting: WaitingPrompt | undefined;
  let waiting_lane = -1;
  let at_ms = Number.POSITIVE_INFINITY;
  for (let index = 0; index < lanes.length; index++) {
    const lane = lanes[index]!;
    if (lane.ready_at_ms > now_ms) {
      if (lane.batch > 0 || lane.prompts.length > 0) at_ms = Math.min(at_ms, lane.ready_at_ms);
      continue;
    }
    if (lane.batch > 0 && lane.deadline_ms < urgent_ms && (background || !lane.background)) {
      urgent = index;
      urgent_ms = lane.deadline_ms;
    }
    for (const prompt of lane.prompts) {
      if (!background && prompt.background) continue;
      if (prompt.available_at_ms > now_ms) {
        at_ms = Math.min(at_ms, prompt.available_at_ms);
        continue;
      }
      if (waiting === undefined || prompt.deadline_ms < waiting.deadline_ms) {
        waiting = prompt;
        waiting_lane = index;
      }
      break;
    }
  }
  if (waiting === undefined) {
    if (urgent < 0) return { at_ms };
    const lane =
      urgent_ms - now_ms > settings.drain_headroom_ms ? nearestEnd(lanes, now_ms, urgent, settings) : urgent;
    return { lane, tokens: 0, ms: lanes[lane]!.decode_ms };
  }
  const lane = lanes[waiting_lane]!;
  const most_urgent = urgent < 0 || waiting.deadline_ms <= urgent_ms;
  if (urgent >= 0 && !most_urgent && !settings.early_prefill)
    return { lane: urgent, tokens: 0, ms: lanes[urgent]!.decode_ms };
  const slack_ms = urgent < 0 ? Number.POSITIVE_INFINITY : streamsSlack(lanes, now_ms);
  const tokens = chunkLength_tokens(lane, waiting, slack_ms, settings);
  const ms = lane.profile.chunk_ms(waiting.done_tokens, tokens) * (1 + settings.overestimate);
  if (!most_urgent && ms > slack_ms) return { lane: urgent, tokens: 0, ms: lanes[urgent]!.decode_ms };
  return { lane: waiting_lane, prompt: waiting, tokens, ms };
}

/** The lane with the fewest tokens still expected, where the others can spare its step; else the most urgent. */
function nearestEnd(
  lanes: readonly Lane[],
  now_ms: number,
  urgent: number,
  settings: SharingSettings,
): number {
  let nearest = urgent;
  for (let index = 0; index < lanes.length; index++) {
    const lane = lanes[index]!;
    if (lane.batch > 0 && lane.ready_at_ms <= now_ms && lane.growth_tokens < lanes[nearest]!.growth_tokens)
      nearest = index;
  }
  if (nearest === urgent) return urgent;
  return streamsSlack(lanes, now_ms) - lanes[nearest]!.decode_ms >= settings.drain_headroom_ms
    ? nearest
    : urgent;
}

/** Reused between calls: indices of lanes by deadline. */
const order: number[] = [];

/**
 * How long every decode stream can wait and still have its next step in time: with steps in the order of their
 * deadlines, the least of deadline − now − all steps up to it.
 */
export function streamsSlack(lanes: readonly Lane[], now_ms: number): number {
  order.length = 0;
  for (let index = 0; index < lanes.length; index++) {
    const lane = lanes[index]!;
    if (lane.batch === 0 || lane.background || lane.ready_at_ms > now_ms) continue;
    let at = order.length;
    order.push(index);
    while (at > 0 && lanes[order[at - 1]!]!.deadline_ms > lane.deadline_ms) {
      order[at] = order[at - 1]!;
      at--;
    }
    order[at] = index;
  }
  let steps_ms = 0;
  let slack_ms = Number.POSITIVE_INFINITY;
  for (const index of order) {
    const lane = lanes[index]!;
    steps_ms += lane.decode_ms;
    if (!lane.late) slack_ms = Math.min(slack_ms, lane.deadline_ms - now_ms - steps_ms);
  }
  return slack_ms;
}

/** Time that can go to requests without a promise, and to whatever else: what streams and waiting prompts can spare. */
export function spareTime(lanes: readonly Lane[], now_ms: number, settings: SharingSettings): number {
  return Math.min(streamsSlack(lanes, now_ms), promptsSpare(lanes, now_ms, settings));
}

/**
 * How long all waiting prompts can be put off and still be done in time, in the order of their deadlines, with what the
 * streams leave them (1 − Σ step/TPOT).
 */
export function promptsSpare(lanes: readonly Lane[], now_ms: number, settings: SharingSettings): number {
  let share = 0;
  const prompts: { deadline_ms: number; ms: number }[] = [];
  for (const lane of lanes) {
    if (lane.batch > 0 && !lane.background) share += lane.decode_ms / lane.tpot_ms;
    for (const { background, late, deadline_ms, done_tokens, left_tokens } of lane.prompts)
      if (!background && !late)
        prompts.push({
          deadline_ms,
          ms: lane.profile.chunk_ms(done_tokens, left_tokens) * (1 + settings.overestimate),
        });
  }
  let spare_ms = Number.POSITIVE_INFINITY;
  let work_ms = 0;
  for (const { deadline_ms, ms } of prompts.sort((a, b) => a.deadline_ms - b.deadline_ms)) {
    work_ms += ms;
    spare_ms = Math.min(spare_ms, deadline_ms - now_ms - work_ms / Math.max(1e-3, 1 - share));
  }
  return spare_ms;
}

/** The longest chunk that the others' slack allows, within the settings' bounds and by halves. */
function chunkLength_tokens(
  lane: Lane,
  prompt: WaitingPrompt,
  slack_ms: number,
  settings: SharingSettings,
): number {
  let tokens = Math.min(prompt.left_tokens, lane.chunk_tokens_max);
  while (
    tokens > settings.prefill_chunk_tokens_min &&
    lane.profile.chunk_ms(prompt.done_tokens, tokens) * (1 + settings.overestimate) > slack_ms
  )
    tokens = Math.max(settings.prefill_chunk_tokens_min, Math.ceil(tokens / 2));
  return tokens;
}
