/**
 * The compute of a device as its scheduler sees it: one lane an instance, with one stream of decode steps and the
 * prompts that wait. Small enough to be copied and run ahead, which is what shadow validation does.
 */
import { finalLengthOf, type InstanceView, lengthOf, type RequestView } from './device-view.ts';
import type { IterationProfile } from './profile.ts';
import type { SharingSettings } from './settings.ts';
import { tokenDeadline } from './slo.ts';

/** A prompt, or a moved sequence, whose tokens are not computed yet. */
export interface WaitingPrompt {
  request: string;
  done_tokens: number;
  left_tokens: number;
  /** Tokens it is expected to grow by while it decodes. */
  growth_tokens: number;
  available_at_ms: number;
  /** When its next token is due; see `effectiveDeadline`. */
  deadline_ms: number;
  tpot_ms: number;
  /** It has no token yet: its pace counts from the first. */
  first: boolean;
  /** Its SLO was broken already: nothing is promised to it any more. */
  late: boolean;
  /** Nothing was ever promised to it. */
  background: boolean;
}

export interface Lane {
  instance: string;
  profile: IterationProfile;
  ready_at_ms: number;
  /** Sequences that decode, their lengths together, and what these are expected to grow by. */
  batch: number;
  tokens: number;
  growth_tokens: number;
  /** When the most urgent of them needs its next token; Infinity where none decodes. */
  deadline_ms: number;
  /** The fastest pace among them. */
  tpot_ms: number;
  /** All of them had their SLO broken before, or have none that is promised. */
  late: boolean;
  /** Nothing was ever promised to any of them. */
  background: boolean;
  /** Estimated time of the next decode step, overestimate included; 0 where none decodes. */
  decode_ms: number;
  /** Most prompt tokens of one iteration. */
  chunk_tokens_max: number;
  /** By deadline. */
  prompts: WaitingPrompt[];
}

/**
 * A deadline that has passed is put off by whole tokens' times until it lies ahead. A request whose SLO is broken goes
 * on at its pace, neither starving nor taking, by ever more negative headroom, what would keep the SLOs of others.
 */
function effectiveDeadline(deadline_ms: number, tpot_ms: number, now_ms: number): number {
  if (deadline_ms >= now_ms) return deadline_ms;
  return deadline_ms + Math.ceil((now_ms - deadline_ms) / tpot_ms) * tpot_ms;
}

export function lanesOf(
  instances: readonly InstanceView[],
  now_ms: number,
  settings: SharingSettings,
): Lane[] {
  return instances.map((instance) => laneOf(instance, now_ms, settings));
}

export function laneOf(instance: InstanceView, now_ms: number, settings: SharingSettings): Lane {
  const lane: Lane = {
    instance: instance.id,
    profile: instance.profile,
    ready_at_ms: instance.ready_at_ms,
    batch: 0,
    tokens: 0,
    growth_tokens: 0,
    deadline_ms: Number.POSITIVE_INFINITY,
    tpot_ms: Number.POSITIVE_INFINITY,
    late: true,
    background: true,
    decode_ms: 0,
    chunk_tokens_max: Math.min(
      settings.prefill_chunk_tokens_max,
      instance.prefill_chunk_tokens_max ?? settings.prefill_chunk_tokens_max,
    ),
    prompts: [],
  };
  let late_deadline_ms = Number.POSITIVE_INFINITY;
  let background_tpot_ms = Number.POSITIVE_INFINITY;
  for (const request of instance.requests) {
    if (request.prefill_tokens_left > 0 || request.available_at_ms > now_ms) {
      addPrompt(lane, waitingPrompt(request, now_ms));
      continue;
    }
    const deadline_ms = tokenDeadline(request);
    const { tpot_ms } = request.service_level;
    lane.batch++;
    lane.tokens += lengthOf(request);
    lane.growth_tokens += finalLengthOf(request) - lengthOf(request);
    if (request.background === true) {
      if (tpot_ms < background_tpot_ms) background_tpot_ms = tpot_ms;
    } else {
      lane.background = false;
      if (tpot_ms < lane.tpot_ms) lane.tpot_ms = tpot_ms;
    }
    if (deadline_ms >= now_ms && request.background !== true) {
      lane.late = false;
      if (deadline_ms < lane.deadline_ms) lane.deadline_ms = deadline_ms;
    } else if (lane.late)
      late_deadline_ms = Math.min(late_deadline_ms, effectiveDeadline(deadline_ms, tpot_ms, now_ms));
  }
  if (lane.late) lane.deadline_ms = late_deadline_ms;
  // Who is promised nothing sets no pace for those who are.
  if (lane.background) lane.tpot_ms = background_tpot_ms;
  estimateDecode(lane, settings);
  return lane;
}

export function waitingPrompt(request: RequestView, now_ms: number): WaitingPrompt {
  const { tpot_ms } = request.service_level;
  const deadline_ms = tokenDeadline(request);
  return {
    request: request.id,
    done_tokens: lengthOf(request) - request.prefill_tokens_left,
    left_tokens: request.prefill_tokens_left,
    growth_tokens: finalLengthOf(request) - lengthOf(request),
    available_at_ms: request.available_at_ms,
    deadline_ms: effectiveDeadline(deadline_ms, tpot_ms, now_ms),
    tpot_ms,
    first: request.output_tokens === 0,
    late: deadline_ms < now_ms,
    background: request.background === true,
  };
}

export function addPrompt(lane: Lane, prompt: WaitingPrompt): void {
  let at = lane.prompts.length;
  while (at > 0 && lane.prompts[at - 1]!.deadline_ms > prompt.deadline_ms) at--;
  lane.prompts.splice(at, 0, prompt);
}

export function estimateDecode(lane: Lane, settings: SharingSettings): void {
  lane.decode_ms =
    lane.batch === 0
      ? 0
      : lane.profile.decode_ms(lane.batch, lane.tokens / lane.batch) * (1 + settings.overestimate);
}

/**
 * The lanes after an iteration that ends at `end_ms`: a decode step gives every sequence of its lane a token, a prompt
 * that is done gives one and joins them.
 */
export function advance(
  lane: Lane,
  prompt: WaitingPrompt | undefined,
  tokens: number,
  end_ms: number,
  settings: SharingSettings,
): void {
  if (prompt === undefined) {
    lane.deadline_ms += lane.tpot_ms;
    lane.tokens += lane.batch;
    lane.growth_tokens = Math.max(0, lane.growth_tokens - lane.batch);
  } else {
    const restored = prompt.left_tokens === 0;
    prompt.done_tokens += tokens;
    prompt.left_tokens -= tokens;
    if (prompt.left_tokens > 0) return;
    lane.prompts.splice(lane.prompts.indexOf(prompt), 1);
    if (!restored) {
      prompt.done_tokens++;
      prompt.growth_tokens = Math.max(0, prompt.growth_tokens - 1);
      prompt.deadline_ms =
        (prompt.first ? Math.min(prompt.deadline_ms, end_ms) : prompt.deadline_ms) + prompt.tpot_ms;
    }
    join(lane, prompt);
  }
  estimateDecode(lane, settings);
}

function join(lane: Lane, prompt: WaitingPrompt): void {
  const late = prompt.late || prompt.background;
  if (lane.batch === 0 || (lane.late && !late)) {
    lane.deadline_ms = prompt.deadline_ms;
    lane.late = late;
  } else if (lane.late === late) lane.deadline_ms = Math.min(lane.deadline_ms, prompt.deadline_ms);
  if (lane.batch === 0 || (lane.background && !prompt.background)) {
    lane.tpot_ms = prompt.tpot_ms;
    lane.background = prompt.background;
  } else if (lane.background === prompt.background) lane.tpot_ms = Math.min(lane.tpot_ms, prompt.tpot_ms);
  lane.batch++;
  lane.tokens += prompt.done_tokens;
  lane.growth_tokens += prompt.growth_tokens;
}
