/**
 * Service level objectives: what a deployment promises, what that is for one request, and how long its next token may
 * still take.
 */

/** What is promised to one request. */
export interface RequestSlo {
  /** From arrival to the first token. */
  ttft_ms: number;
  /** Between two tokens after it. */
  tpot_ms: number;
}

/** What a model's deployment promises; absent members are those of an interactive request. */
export type Slo = Partial<RequestSlo>;

/** The SLO of a request of `input_tokens`: what its deployment says, else an interactive request's. */
export function sloOf(slo: Slo, input_tokens: number): RequestSlo {
  return { ...interactiveSlo(input_tokens), ...slo };
}

/** Targets of an interactive request: max(2, L/512) s and 0.25 s a token, L the prompt's tokens (LLM-Mesh §2.1). */
export function interactiveSlo(input_tokens: number): RequestSlo {
  return { ttft_ms: Math.max(2000, (input_tokens / 512) * 1000), tpot_ms: 250 };
}

/** What of a request its deadlines depend on. */
export interface TimedRequest {
  /** When the client sent it; all times are ms of one clock. */
  arrival_ms: number;
  /** Tokens generated so far. */
  output_tokens: number;
  /** When the first of them came; absent before. */
  first_token_ms?: number;
  service_level: RequestSlo;
}

/**
 * When the next token is due. LLM-Mesh Eq. 1 says ST + TTFT + TPOT·O: a first token that comes early leaves its rest of
 * the TTFT to the later ones. Clients see the pace from the first token on, and TPOT is measured so; hence the pace
 * counts from the first token where that came in time, which is never later than Eq. 1.
 */
export function tokenDeadline({
  arrival_ms,
  output_tokens,
  first_token_ms,
  service_level,
}: TimedRequest): number {
  const promised_ms = arrival_ms + service_level.ttft_ms;
  const first_ms =
    first_token_ms !== undefined && first_token_ms < promised_ms ? first_token_ms : promised_ms;
  return first_ms + service_level.tpot_ms * output_tokens;
}

/** Eq. 1: how long the next token may still be delayed; negative once its SLO is broken. */
export function headroom(request: TimedRequest, now_ms: number): number {
  return tokenDeadline(request) - now_ms;
}
