/** Where requests come from: arrival processes, distributions of lengths, recorded traces. */
import { HpcserveError } from '../../spec/errors/error.ts';
import { exponential, gamma, normal, seededRandom } from './random.ts';
import type { RequestColumns } from './requests.ts';

/** Lengths in tokens; drawn values are rounded and are at least 1. */
export type LengthDistribution =
  | { kind: 'fixed'; tokens: number }
  | { kind: 'uniform'; low: number; high: number }
  /** Cut off at 1 and, where given, at `max`. */
  | { kind: 'normal'; mean: number; deviation: number; max?: number }
  /** Log-normal with this mean and coefficient of variation. */
  | { kind: 'lognormal'; mean: number; cv: number; max?: number };

export interface SyntheticWorkload {
  /** Mean requests per second; unused with a fixed concurrency. */
  rate_per_s: number;
  /** Coefficient of variation of the gaps between arrivals: 1 is Poisson, more is bursty (Gamma), 0 even. */
  arrival_cv: number;
  requests: number;
  input: LengthDistribution;
  output: LengthDistribution;
  seed: number;
}

/** @throws E_SIMULATION_INPUT naming the value that is out of range. */
export function drawRequests(workload: SyntheticWorkload): RequestColumns {
  const { rate_per_s, arrival_cv, requests, input, output } = workload;
  requirePositive('the request rate', rate_per_s, 'per second');
  if (!(arrival_cv >= 0 && arrival_cv <= 100))
    throw invalid(
      `an arrival CV of ${arrival_cv} is out of range`,
      'it lies between 0 and 100; 1 is Poisson',
    );
  if (!Number.isSafeInteger(requests) || requests < 1 || requests > 5_000_000)
    throw invalid(`${requests} requests cannot be simulated`, 'a whole number from 1 to 5 million is needed');
  checkLengths('input', input);
  checkLengths('output', output);
  const random = seededRandom(workload.seed);
  const columns: RequestColumns = {
    arrival_s: new Float64Array(requests),
    input_tokens: new Int32Array(requests),
    output_tokens: new Int32Array(requests),
  };
  const gap = gapsOf(arrival_cv, random);
  let now = 0;
  for (let i = 0; i < requests; i++) {
    if (i > 0) now += gap() / rate_per_s;
    columns.arrival_s[i] = now;
    columns.input_tokens[i] = draw(input, random);
    columns.output_tokens[i] = draw(output, random);
  }
  return columns;
}

/** Gaps of mean 1: Gamma with shape 1/CV², whose CV is as asked. */
function gapsOf(cv: number, random: () => number): () => number {
  if (cv === 0) return () => 1;
  if (cv === 1) return () => exponential(random);
  const shape = 1 / cv ** 2;
  return () => gamma(shape, random) / shape;
}

function draw(length: LengthDistribution, random: () => number): number {
  switch (length.kind) {
    case 'fixed':
      return Math.max(1, Math.round(length.tokens));
    case 'uniform':
      return Math.max(1, Math.round(length.low + (length.high - length.low) * random()));
    case 'normal':
      return bounded(length.mean + length.deviation * normal(random), length.max);
    case 'lognormal': {
      const variance = Math.log(1 + length.cv ** 2);
      return bounded(
        Math.exp(Math.log(length.mean) - variance / 2 + Math.sqrt(variance) * normal(random)),
        length.max,
      );
    }
  }
}

function bounded(tokens: number, max = 2 ** 30): number {
  return Math.max(1, Math.min(max, Math.round(tokens)));
}

function checkLengths(which: string, length: LengthDistribution): void {
  switch (length.kind) {
    case 'fixed':
      requirePositive(`the ${which} length`, length.tokens, 'tokens');
      return;
    case 'uniform':
      requirePositive(`the shortest ${which}`, length.low, 'tokens');
      if (length.high < length.low)
        throw invalid(`the longest ${which} (${length.high}) is below the shortest (${length.low})`);
      requirePositive(`the longest ${which}`, length.high, 'tokens');
      return;
    case 'normal':
      if (!(length.deviation >= 0)) throw invalid(`a deviation of ${length.deviation} tokens is negative`);
      requirePositive(`the mean ${which} length`, length.mean, 'tokens');
      return;
    case 'lognormal':
      if (!(length.cv >= 0)) throw invalid(`a CV of ${length.cv} is negative`);
      requirePositive(`the mean ${which} length`, length.mean, 'tokens');
      return;
  }
}

function requirePositive(what: string, value: number, unit: string): void {
  if (!(value > 0 && value <= 1e9))
    throw invalid(`${what} of ${value} ${unit} is out of range`, 'it must be above 0 and at most 10⁹');
}

function invalid(what: string, because?: string): HpcserveError {
  return new HpcserveError('E_SIMULATION_INPUT', because === undefined ? { what } : { what, because });
}
