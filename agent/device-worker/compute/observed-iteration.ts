import { observeStep } from '../../../solver/streaming/measured-pace.ts';
import type { EngineStats, IterationPlan, StepReport } from '../../../spec/engine-contract.ts';
import type { ScheduledInstance } from './scheduled-instance.ts';

/**
 * What an iteration took refreshes the profile of its model, before its requests are brought up to date. Pure
 * iterations only: of what rode along nobody knows which part took how long, nor of batches that overlap.
 */
export function observeIteration(
  instance: ScheduledInstance,
  plan: IterationPlan,
  { prefill_tokens, decode_tokens, overlapped }: StepReport,
  elapsed_ms: number,
): void {
  if (overlapped) return;
  const { growing, requests } = instance;
  const ms = Math.max(elapsed_ms, 1e-3);
  if (prefill_tokens === 0 && decode_tokens > 0) {
    const decoding = requests.filter(({ prefill_tokens_left }) => prefill_tokens_left === 0);
    const tokens = decoding.reduce(
      (sum, { input_tokens, output_tokens }) => sum + input_tokens + output_tokens,
      0,
    );
    if (decoding.length > 0) growing.observeDecode(decode_tokens, tokens / decoding.length, ms);
  } else if (decode_tokens === 0 && prefill_tokens > 0) {
    const request = instance.live.get(plan.first ?? Number.NaN);
    // More than it had left: others' prompts were in it.
    if (request && prefill_tokens <= request.prefill_tokens_left) {
      const done = request.input_tokens + request.output_tokens - request.prefill_tokens_left;
      growing.observePrefill(done, prefill_tokens, ms);
    }
  }
  instance.profile = growing.profile;
}

/** The same where weights are streamed, of any iteration: its rows, and for how long it did not wait for weights. */
export function observePace(
  instance: ScheduledInstance,
  { prefill_tokens, decode_tokens, overlapped }: StepReport,
  { streamed }: EngineStats,
  elapsed_ms: number,
): void {
  if (streamed === undefined || overlapped) return;
  const waited_ms = streamed.waited_ms - instance.waited_ms;
  instance.waited_ms = streamed.waited_ms;
  const { step_bytes, link_bytes_per_s } = streamed;
  instance.pace = observeStep(instance.pace, {
    rows: prefill_tokens + decode_tokens,
    compute_ms: elapsed_ms - waited_ms,
    step_bytes,
    link_bytes_per_s,
  });
}
