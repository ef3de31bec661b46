/** What users saw of a run. */
import { type Distribution, distributionOf } from '../simulator/statistics.ts';
import type { StreamingOutcome } from './serving.ts';
import type { StreamedSequence, StreamedSlo } from './simulated-slice.ts';

export interface StreamingFigures {
  requests: number;
  /** Shares of requests within the time to the first token, within that between tokens, and within both. */
  ttft_attainment: number;
  tpot_attainment: number;
  attainment: number;
  ttft_ms: Distribution;
  tpot_ms: Distribution;
  /** Mean bytes a second over all links. */
  link_bytes_per_s: number;
}

function timeToFirst_ms({ first_ms, arrival_ms }: StreamedSequence): number {
  return first_ms - arrival_ms;
}

/** NaN of an answer of one token. */
function timePerOutput_ms({ first_ms, done_ms, output_tokens }: StreamedSequence): number {
  return output_tokens > 1 ? (done_ms - first_ms) / (output_tokens - 1) : Number.NaN;
}

export function streamingFigures(outcome: StreamingOutcome, slo: StreamedSlo): StreamingFigures {
  const { sequences, link_bytes, end_ms } = outcome;
  const inTime = (sequence: StreamedSequence): boolean => timeToFirst_ms(sequence) <= slo.ttft_ms;
  const fluent = (sequence: StreamedSequence): boolean => !(timePerOutput_ms(sequence) > slo.tpot_ms);
  const share = (of: (sequence: StreamedSequence) => boolean): number =>
    sequences.filter(of).length / sequences.length;
  return {
    requests: sequences.length,
    ttft_attainment: share(inTime),
    tpot_attainment: share(fluent),
    attainment: share((sequence) => inTime(sequence) && fluent(sequence)),
    ttft_ms: distributionOf(sequences.map(timeToFirst_ms)),
    tpot_ms: distributionOf(sequences.map(timePerOutput_ms)),
    link_bytes_per_s: (1000 * link_bytes) / end_ms,
  };
}
