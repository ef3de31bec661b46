/**
 * Requests of many models as a serverless platform sees them. The paper maps models to functions of the Azure Functions
 * trace of 2019, 30 minutes of it, and draws lengths from Azure's LLM conversations of 2023. This generator keeps what
 * matters of both: how unevenly functions are called, how their calls bunch, and how long prompts and answers are.
 */
import { exponential, seededRandom } from '../simulator/random.ts';

export interface WorkloadRequest {
  id: string;
  /** 0 to models − 1. */
  model: number;
  arrival_ms: number;
  input_tokens: number;
  output_tokens: number;
}

export interface WorkloadOptions {
  models: number;
  minutes: number;
  seed: number;
  /** Lengths to draw from, in pairs; by default from the quantiles below. */
  lengths?: readonly { input_tokens: number; output_tokens: number }[];
}

/**
 * Calls of one function in 30 minutes, by class; every class has as many functions. The counts are those of the
 * workload that the paper's authors publish (their sample of Azure's trace: 2366, 4684 and 9266 calls for 32, 64 and
 * 128 functions): one function in sixteen gets two thirds of all calls.
 */
const calls_per_class = [751, 192.5, 80.25, 41.125, 30, 19.75, 12, 8, 6, 6, 3.25, 2.125, 2, 1, 1, 1];

/**
 * How a function's calls fall into minutes, with the share of such functions among those of 20 calls and more in that
 * sample (46): the same number each minute; by chance; nearly all in one minute of every few; nearly all within a few
 * minutes of the half hour.
 */
const patterns = [
  { share: 0.42, minutes: callsEvenly },
  { share: 0.26, minutes: callsByChance },
  { share: 0.2, minutes: callsPeriodically },
  { share: 0.12, minutes: callsInClusters },
] as const;

/**
 * Quantiles of Azure's LLM inference trace of 2023, conversations of at most 4096 tokens (CC-BY, Microsoft Azure; Patel
 * et al., ISCA 2024): at 0, 1, 5, 10, 15, …, 90, 95, 99 and 100 %.
 */
const quantiles = [
  0, 0.01, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9,
  0.95, 0.99, 1,
];
const input_quantiles = [
  2, 27, 181, 205, 309, 382, 393, 400, 407, 422, 877, 992, 1023, 1045, 1069, 1093, 1120, 1163, 1307, 1436,
  2229, 3090, 4000,
];
const output_quantiles = [
  7, 14, 50, 66, 77, 85, 90, 95, 102, 110, 125, 144, 166, 204, 375, 391, 396, 403, 414, 427, 458, 605, 1000,
];
const tokens_max = 4096;

/** Sorted by arrival; the same options give the same requests. */
export function drawWorkload(options: WorkloadOptions): WorkloadRequest[] {
  const random = seededRandom(options.seed);
  const requests: WorkloadRequest[] = [];
  for (let model = 0; model < options.models; model++) {
    const calls = calls_per_class[Math.floor((model * calls_per_class.length) / options.models)]!;
    // 2.125 calls are two, and in one of eight functions three.
    const count = Math.round((calls * options.minutes) / 30 - 0.5 + random());
    const minutes = patternOf(random)(count, options.minutes, random);
    for (const [minute, inside] of minutes.entries())
      for (let call = 0; call < inside; call++) {
        const arrival_ms = (minute + random()) * 60_000;
        requests.push({ id: '', model, arrival_ms, ...drawLengths(options, random) });
      }
  }
  requests.sort((a, b) => a.arrival_ms - b.arrival_ms);
  for (const [index, request] of requests.entries()) request.id = `r${index}`;
  return requests;
}

type Minutes = (count: number, minutes: number, random: () => number) => number[];

function patternOf(random: () => number): Minutes {
  let left = random();
  for (const { share, minutes } of patterns) {
    left -= share;
    if (left <= 0) return minutes;
  }
  return callsByChance;
}

function callsEvenly(count: number, minutes: number, random: () => number): number[] {
  const offset = random();
  return Array.from(
    { length: minutes },
    (_, minute) =>
      Math.floor(((minute + 1) * count) / minutes + offset) - Math.floor((minute * count) / minutes + offset),
  );
}

function callsByChance(count: number, minutes: number, random: () => number): number[] {
  const calls = new Array<number>(minutes).fill(0);
  for (let call = 0; call < count; call++) calls[Math.floor(random() * minutes)]!++;
  return calls;
}

function callsPeriodically(count: number, minutes: number, random: () => number): number[] {
  // Timers fire at full minutes of an hour, so that functions of one period fall together.
  const period = [5, 5, 10, 3][Math.floor(random() * 4)]!;
  const phase = period === 5 ? 1 : Math.floor(random() * period);
  const weights = Array.from({ length: minutes }, (_, minute) =>
    minute % period === phase % period ? 25 + 10 * random() : 1,
  );
  return byWeight(count, weights, random);
}

function callsInClusters(count: number, minutes: number, random: () => number): number[] {
  const weights = new Array<number>(minutes).fill(0);
  const clusters = 1 + Math.floor(random() * 4);
  for (let cluster = 0; cluster < clusters; cluster++) {
    const start = Math.floor(random() * minutes);
    const length = 2 + Math.floor(random() * 5);
    for (let minute = start; minute < Math.min(minutes, start + length); minute++)
      weights[minute]! += exponential(random);
  }
  return byWeight(count, weights, random);
}

function byWeight(count: number, weights: readonly number[], random: () => number): number[] {
  const total = weights.reduce((sum, weight) => sum + weight, 0);
  const calls = new Array<number>(weights.length).fill(0);
  for (let call = 0; call < count; call++) {
    let left = random() * total;
    let minute = 0;
    while (minute < weights.length - 1 && left >= weights[minute]!) left -= weights[minute++]!;
    calls[minute]!++;
  }
  return calls;
}

function drawLengths(
  { lengths }: WorkloadOptions,
  random: () => number,
): { input_tokens: number; output_tokens: number } {
  const drawn =
    lengths === undefined
      ? {
          input_tokens: quantile(input_quantiles, random()),
          output_tokens: quantile(output_quantiles, random()),
        }
      : lengths[Math.floor(random() * lengths.length)]!;
  const input_tokens = Math.max(1, Math.min(drawn.input_tokens, tokens_max - 1));
  return {
    input_tokens,
    output_tokens: Math.max(1, Math.min(drawn.output_tokens, tokens_max - input_tokens)),
  };
}

function quantile(values: readonly number[], at: number): number {
  let right = 1;
  while (quantiles[right]! < at) right++;
  const part = (at - quantiles[right - 1]!) / (quantiles[right]! - quantiles[right - 1]!);
  return Math.round(values[right - 1]! + part * (values[right]! - values[right - 1]!));
}
