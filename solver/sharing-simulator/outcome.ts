/** What became of simulated requests, and the figures that are drawn from it. */

import type { RequestSlo } from '../sharing/slo.ts';
import type { WorkloadRequest } from './workload.ts';

export interface RequestOutcome {
  request: WorkloadRequest;
  service_level: RequestSlo;
  /** Undefined: it never got one. */
  first_token_ms?: number;
  last_token_ms?: number;
  /** Time for which it waited for weights to be loaded. */
  cold_start_ms: number;
  /** Moves to another place after it had begun. */
  moves: number;
}

export interface SharingReport {
  requests: number;
  /** First token in time, and tokens at the pace on average: the paper's measure. */
  met: number;
  /** The same, the time of a cold start not counted in the first token's, as the authors' own evaluation does it. */
  met_without_cold_start: number;
  /** Never began: nobody could take them while their first token could still come in time. */
  dropped: number;
  ttft_p50_ms: number;
  ttft_p95_ms: number;
  /** Devices of each kind that held an instance, averaged over the time of the arrivals. */
  cpus_used: number;
  gpus_used: number;
  loads: number;
  preemptions: number;
  consolidations: number;
  evictions: number;
  moves: number;
}

/** Counters that a simulation keeps beside the outcomes. */
export interface ServingCounters {
  device_ms: { cpu: number; gpu: number };
  loads: number;
  preemptions: number;
  consolidations: number;
  evictions: number;
}

export function report(outcomes: readonly RequestOutcome[], counters: ServingCounters): SharingReport {
  const ttfts = outcomes.map(ttft).sort((a, b) => a - b);
  const at = (share: number): number =>
    ttfts[Math.min(ttfts.length - 1, Math.floor(share * ttfts.length))] ?? 0;
  const span_ms = outcomes.reduce((latest, { request }) => Math.max(latest, request.arrival_ms), 1);
  return {
    requests: outcomes.length,
    met: outcomes.filter((outcome) => meets(outcome, 0)).length,
    met_without_cold_start: outcomes.filter((outcome) => meets(outcome, outcome.cold_start_ms)).length,
    dropped: outcomes.filter(({ first_token_ms }) => first_token_ms === undefined).length,
    ttft_p50_ms: at(0.5),
    ttft_p95_ms: at(0.95),
    cpus_used: counters.device_ms.cpu / span_ms,
    gpus_used: counters.device_ms.gpu / span_ms,
    loads: counters.loads,
    preemptions: counters.preemptions,
    consolidations: counters.consolidations,
    evictions: counters.evictions,
    moves: outcomes.reduce((sum, { moves }) => sum + moves, 0),
  };
}

function ttft({ request, first_token_ms }: RequestOutcome): number {
  return first_token_ms === undefined ? Number.POSITIVE_INFINITY : first_token_ms - request.arrival_ms;
}

function meets(outcome: RequestOutcome, grace_ms: number): boolean {
  const { request, service_level, first_token_ms, last_token_ms } = outcome;
  if (first_token_ms === undefined || last_token_ms === undefined) return false;
  if (ttft(outcome) > service_level.ttft_ms + grace_ms) return false;
  return last_token_ms - first_token_ms <= service_level.tpot_ms * (request.output_tokens - 1);
}
