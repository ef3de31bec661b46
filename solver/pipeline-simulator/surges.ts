/**
 * Requests that come in surges: a Poisson process whose rate switches between a quiet one and a surge. The gaps
 * between arrivals have the CV that is asked for, while the surges set the peak: the reading of FlexPipe Fig. 9,
 * whose windows of 15 s have CVs of 0.59 to 3.47 in a load with a CV of 8, and surges 90 s apart.
 */
import { exponential, seededRandom } from '../simulator/random.ts';
import { drawRequests } from '../simulator/workload.ts';

export interface PipelineRequest {
  arrival_ms: number;
  /** Passes through all stages: one for the prompt, one for each further token. */
  passes: number;
}

export interface SurgeOptions {
  requests: number;
  /** Mean over quiet times and surges. */
  rate_per_s: number;
  /** Of the gaps. 1: no surges. */
  cv: number;
  /** Mean length of a surge. */
  surge_s: number;
  passes_mean: number;
  seed: number;
}

export interface SurgeRates {
  quiet_per_s: number;
  surge_per_s: number;
  /** Share of time. */
  surge_share: number;
}

/**
 * Rates for a CV of c: surges of (1 + 1.5 c) times the mean, which the granularities of Fig. 8 carry and coarser
 * ones do not (8 stages at CV 2, 16 at CV 4, by Table 2), and the quiet rate by the moments of gaps that are
 * exponential within each state, CV² = 2 λ (f / λ_surge + (1 − f) / λ_quiet) − 1.
 */
export function surgeRates(rate_per_s: number, cv: number): SurgeRates {
  if (cv <= 1) return { quiet_per_s: rate_per_s, surge_per_s: rate_per_s, surge_share: 0 };
  const surge_per_s = rate_per_s * (1 + 1.5 * cv);
  const shareAt = (quiet: number): number => (rate_per_s - quiet) / (surge_per_s - quiet);
  const cvAt = (quiet: number): number => {
    const share = shareAt(quiet);
    return Math.sqrt(2 * rate_per_s * (share / surge_per_s + (1 - share) / quiet) - 1);
  };
  let [low, high] = [rate_per_s * 1e-9, rate_per_s];
  for (let step = 0; step < 100; step++) {
    const middle = (low + high) / 2;
    if (cvAt(middle) > cv) low = middle;
    else high = middle;
  }
  return { quiet_per_s: low, surge_per_s, surge_share: shareAt(low) };
}

/** Requests in surges, by seed: Poisson arrivals of rate 1 on a clock that runs at the rate of the time. */
export function drawSurges(options: SurgeOptions): PipelineRequest[] {
  const { requests, rate_per_s, cv, surge_s, passes_mean, seed } = options;
  const { quiet_per_s, surge_per_s, surge_share } = surgeRates(rate_per_s, cv);
  const drawn = drawRequests({
    rate_per_s: 1,
    arrival_cv: 1,
    requests,
    input: { kind: 'fixed', tokens: 1 },
    output: { kind: 'lognormal', mean: passes_mean, cv: 0.5 },
    seed,
  });
  const random = seededRandom(seed + 1);
  const quiet_s = surge_share > 0 ? (surge_s * (1 - surge_share)) / surge_share : Number.POSITIVE_INFINITY;
  let surging = false;
  let [now_s, done] = [0, 0];
  let until_s = surge_share > 0 ? exponential(random) * quiet_s : Number.POSITIVE_INFINITY;
  return Array.from(drawn.arrival_s, (mark, index) => {
    for (;;) {
      const rate = surging ? surge_per_s : quiet_per_s;
      const at_s = now_s + (mark - done) / rate;
      if (at_s <= until_s) {
        [now_s, done] = [at_s, mark];
        break;
      }
      done += (until_s - now_s) * rate;
      now_s = until_s;
      surging = !surging;
      until_s = now_s + exponential(random) * (surging ? surge_s : quiet_s);
    }
    return { arrival_ms: 1000 * now_s, passes: drawn.output_tokens[index]! };
  });
}

/** Requests whose gaps are Gamma distributed, a renewal process: bursts of a second or less. */
export function drawGammaArrivals(options: Omit<SurgeOptions, 'surge_s'>): PipelineRequest[] {
  const drawn = drawRequests({
    rate_per_s: options.rate_per_s,
    arrival_cv: options.cv,
    requests: options.requests,
    input: { kind: 'fixed', tokens: 1 },
    output: { kind: 'lognormal', mean: options.passes_mean, cv: 0.5 },
    seed: options.seed,
  });
  return Array.from(drawn.arrival_s, (at_s, index) => ({
    arrival_ms: 1000 * at_s,
    passes: drawn.output_tokens[index]!,
  }));
}
