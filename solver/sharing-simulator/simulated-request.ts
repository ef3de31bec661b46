/** A request on its way through a simulation: what decisions see of it, and what only the simulation knows. */
import type { ArrivingRequest } from '../sharing/device-view.ts';
import { interactiveSlo } from '../sharing/slo.ts';
import type { RequestOutcome } from './outcome.ts';
import type { WorkloadRequest } from './workload.ts';

export interface SimulatedRequest extends ArrivingRequest {
  /** Where the answer really ends. */
  target_tokens: number;
  outcome: RequestOutcome;
}

export function simulatedRequest(request: WorkloadRequest, model: string): SimulatedRequest {
  const service_level = interactiveSlo(request.input_tokens);
  return {
    id: request.id,
    model,
    arrival_ms: request.arrival_ms,
    input_tokens: request.input_tokens,
    output_tokens: 0,
    expected_output_tokens: 0,
    prefill_tokens_left: request.input_tokens,
    available_at_ms: 0,
    service_level,
    target_tokens: request.output_tokens,
    outcome: { request, service_level, cold_start_ms: 0, moves: 0 },
  };
}

/** One more token; true where it was the last. */
export function giveToken(request: SimulatedRequest, now_ms: number): boolean {
  request.output_tokens++;
  request.first_token_ms ??= now_ms;
  request.outcome.first_token_ms ??= now_ms;
  request.outcome.last_token_ms = now_ms;
  return request.output_tokens >= request.target_tokens;
}
