/** An SLO that a device cannot keep even for one request alone: what is promised there instead. */
import type { InstanceView, RequestView } from './device-view.ts';
import { finalLengthOf } from './device-view.ts';
import { addPrompt, laneOf, waitingPrompt } from './lanes.ts';
import type { SharingSettings } from './settings.ts';
import { validate } from './shadow-validation.ts';
import type { RequestSlo } from './slo.ts';

/**
 * Of what a request takes alone. A promise of exactly that would leave the device to one request at a time; of much
 * more, requests would wait behind each other for long.
 */
const stretch = 2;

/**
 * The request's own SLO where the idle device keeps it, else twice what the request takes there alone: a slow device
 * serves what it is given, as fast as it can, and still refuses what would make others late.
 */
export function attainableSlo(
  instance: InstanceView,
  request: RequestView,
  settings: SharingSettings,
): { slo: RequestSlo; kept: boolean } {
  const start_ms = request.arrival_ms;
  const lane = laneOf({ ...instance, ready_at_ms: 0, requests: [] }, start_ms, settings);
  const prompt = waitingPrompt({ ...request, available_at_ms: 0 }, start_ms);
  const { done_tokens, left_tokens } = prompt;
  addPrompt(lane, prompt);
  const { service_level } = request;
  if (validate([lane], request.id, start_ms, settings).ok) return { slo: service_level, kept: true };
  const raised = 1 + settings.overestimate;
  let prefill_ms = 0;
  for (let at = done_tokens; at < done_tokens + left_tokens; at += lane.chunk_tokens_max)
    prefill_ms += instance.profile.chunk_ms(
      at,
      Math.min(lane.chunk_tokens_max, done_tokens + left_tokens - at),
    );
  const step_ms = instance.profile.decode_ms(1, finalLengthOf(request));
  return {
    slo: {
      ttft_ms: Math.max(service_level.ttft_ms, stretch * prefill_ms * raised),
      tpot_ms: Math.max(service_level.tpot_ms, stretch * step_ms * raised),
    },
    kept: false,
  };
}
