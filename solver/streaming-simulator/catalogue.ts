/** Requests of many models: bursts of a few, and a long tail that is asked now and then. */
import { drawRequests, type LengthDistribution } from '../simulator/workload.ts';

export interface CatalogueModel {
  /** Index into the models that are served. */
  model: number;
  requests_per_s: number;
}

export interface CatalogueRequest {
  model: number;
  arrival_ms: number;
  input_tokens: number;
  output_tokens: number;
}

export interface CatalogueWorkload {
  models: readonly CatalogueModel[];
  seconds: number;
  /** Of the gaps between requests of one model: 1 is Poisson, more is bursty. */
  arrival_cv: number;
  input: LengthDistribution;
  output: LengthDistribution;
  seed: number;
  /** Rate at a time, as a multiple of the mean; absent: 1. Its mean is 1. */
  pattern?: (at_s: number) => number;
}

/** By seed, in order of arrival. */
export function drawCatalogue(workload: CatalogueWorkload): CatalogueRequest[] {
  const { models, seconds, arrival_cv, input, output, seed } = workload;
  const clock = clockOf(workload);
  const requests = models.flatMap(({ model, requests_per_s }, index) => {
    const expected = requests_per_s * seconds;
    // Enough for the whole time, however the gaps fall.
    const count = Math.ceil(expected + 6 * arrival_cv * Math.sqrt(expected) + 10);
    const drawn = drawRequests({
      rate_per_s: requests_per_s,
      arrival_cv,
      requests: count,
      input,
      output,
      seed: seed * 1009 + index,
    });
    // A process that begins with a request would have every model asked at once.
    const first_s = drawn.arrival_s[1]! / 2;
    return Array.from(drawn.arrival_s, (arrival_s, at) => ({
      model,
      arrival_ms: 1000 * clock(arrival_s + first_s),
      input_tokens: drawn.input_tokens[at]!,
      output_tokens: drawn.output_tokens[at]!,
    })).filter(({ arrival_ms }) => arrival_ms < 1000 * seconds);
  });
  return requests.sort((a, b) => a.arrival_ms - b.arrival_ms);
}

/** From a clock on which the rate is 1 to one on which it follows the pattern. */
function clockOf({ pattern, seconds }: CatalogueWorkload): (mark_s: number) => number {
  if (!pattern) return (mark_s) => mark_s;
  const marks_s = [0];
  for (let at = 0; at < seconds; at++) marks_s.push(marks_s[at]! + pattern(at));
  return (mark_s) => {
    let [low, high] = [0, marks_s.length - 1];
    if (mark_s >= marks_s[high]!) return Number.POSITIVE_INFINITY;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (marks_s[middle]! <= mark_s) low = middle;
      else high = middle;
    }
    return low + (mark_s - marks_s[low]!) / (marks_s[high]! - marks_s[low]!);
  };
}

/** Rates by Zipf's law: the model of rank r is asked in proportion to r^−s. */
export function longTail(models: number, requests_per_s: number, exponent: number): number[] {
  const weights = Array.from({ length: models }, (_, rank) => (rank + 1) ** -exponent);
  const total = weights.reduce((sum, weight) => sum + weight, 0);
  return weights.map((weight) => (requests_per_s * weight) / total);
}
