/**
 * L of LLMFabric's Eq. 1: the latency a placement may expect, worked out in closed form in microseconds, for
 * searches that ask about thousands of options. `simulateServing` answers the same with queues and bursts.
 */
import { HpcserveError } from '../../spec/errors/error.ts';
import { activeParameters } from '../catalog/model-shape.ts';
import { type ConfiguredReplica, type ReplicaConfig, replicaOf } from './deployment.ts';
import { computeOn } from './operators.ts';
import { devicePower } from './power.ts';
import { type Lengths, type PromptPath, SimulatedServiceTimes } from './service-times.ts';
import { gammaShareBelow, horizon_s, meanWait, settlingWait, type Wait, waitsLonger } from './waiting.ts';

/** What arrives at one replica: w = ⟨λ, μ_in, μ_out⟩ of LLMFabric §3.3. */
export interface ReplicaLoad extends Lengths {
  rate_per_s: number;
}

export interface LatencyEstimate {
  ttft_ms: number;
  tpot_ms: number;
  e2e_ms: number;
  /** Sequences that run at once on average. */
  running: number;
  /** Offered load over what the replica can take; at 1 and above queues grow without end. */
  utilization: number;
  /** Requests per second the replica could take at most. */
  max_rate_per_s: number;
  /** Mean electrical power of the replica, all its devices: idle time included, hosts and cooling left out. */
  power_w: number;
}

/** Targets of one request; none is a target that every request meets. */
export interface LatencyTargets {
  ttft_ms?: number | undefined;
  tpot_ms?: number | undefined;
}

/** The steady state under one load; times in seconds. */
interface SteadyState {
  times: SimulatedServiceTimes;
  running: number;
  utilization: number;
  max_rate_per_s: number;
  /** Probability that nothing runs. */
  empty: number;
  /** One decode step, and what a prompt adds to the steps it shares. */
  decode: number;
  prompt: number;
  /** Share of time that prompts take. */
  prompt_share: number;
  path: PromptPath;
  tpot: number;
  /** Of the TPOT of single requests. */
  tpot_variance: number;
  slot: Wait;
  /** Mean of the wait that grows over the horizon above capacity; uniform between 0 and twice that. */
  overload: number;
}

/**
 * Answers for one kind of replica, for any load, from the steady state of a birth–death chain over the number of
 * sequences that run. With n of them a token takes t(n) = (s(n) + L a(n) / μ_out) / (1 − λ a(n)): the decode step s,
 * the prompts that arrive meanwhile and add a each, and the L prompts that were waiting when the first token came.
 * Requests come at rate λ and go at n / (μ_out t(n)); for processor sharing the distribution of n depends on the mean
 * length alone. Little's law gives TPOT = E[n] / (λ μ_out). Where no place in the batch is free the tail is that of
 * M/M/c. Before its first token a request waits for the rest of the step that runs, for the prompts ahead, and for a
 * place (`waiting.ts`).
 */
export class LatencyModel {
  readonly #replica: ConfiguredReplica;
  readonly #devices: number;
  readonly #flops_per_token: number;
  readonly #reached_flops: number;
  /** Searches ask about the same lengths at many rates. */
  #times: SimulatedServiceTimes | undefined;

  /**
   * @param role of a pool: `prefill` for loads of one output token; `decode` where prompts come with their KV
   * @throws what `replicaOf` throws
   */
  constructor(config: ReplicaConfig, role?: 'prefill' | 'decode') {
    this.#replica = replicaOf(config, role);
    const { pp, tp, device, shape, calibration } = this.#replica.model.input;
    this.#devices = tp * pp;
    this.#flops_per_token = (2 * activeParameters(shape)) / this.#devices;
    this.#reached_flops =
      (device.peak_flops_per_s[computeOn(device, shape.weights.compute)] ?? 1) *
      calibration.device.gemm_compute;
  }

  /** The most requests per second at these lengths. */
  maxRate(lengths: Lengths): number {
    return this.#timesOf(lengths).max_rate_per_s;
  }

  /** @throws E_SIMULATION_INPUT for a negative rate or lengths below one token */
  estimate(load: ReplicaLoad): LatencyEstimate {
    const state = this.#steadyState(load);
    const { path, slot, running, utilization, max_rate_per_s, tpot } = state;
    const ttft =
      this.#leastTtft(state) + path.residual + meanWait(path.ahead) + meanWait(slot) + state.overload;
    return {
      ttft_ms: ttft * 1e3,
      tpot_ms: tpot * 1e3,
      e2e_ms: (ttft + tpot * (load.output_tokens - 1)) * 1e3,
      running,
      utilization,
      max_rate_per_s,
      power_w: this.#power(load, state),
    };
  }

  /**
   * Share of requests that meet the targets, 0 to 1; rises with the targets and falls with the load (but for
   * some hundredths where steps turn from full to half full). Of a replica that is offered more than it can
   * take, those of the first hour.
   * @throws as estimate
   */
  attainment(load: ReplicaLoad, { ttft_ms, tpot_ms }: LatencyTargets): number {
    const state = this.#steadyState(load);
    let share = 1;
    if (ttft_ms !== undefined) {
      const left = ttft_ms / 1e3 - this.#leastTtft(state);
      // The rest of a step is even between 0 and the step's length, where one runs.
      const { running_share, residual, ahead } = state.path;
      const step = running_share === 0 ? 0 : (2 * residual) / running_share;
      const inTime = (length: number): number =>
        meanOver((at) => 1 - waitsLonger(ahead, state.slot, left - at * (length + 2 * state.overload)));
      share = running_share * inTime(step) + (1 - running_share) * inTime(0);
    }
    if (tpot_ms !== undefined && load.output_tokens > 1) {
      const least = state.times.decode(1);
      share *= gammaShareBelow(tpot_ms / 1e3 - least, Math.max(0, state.tpot - least), state.tpot_variance);
      // Those that are not served within the horizon meet no target.
      if (ttft_ms === undefined) share /= Math.max(1, state.utilization);
    }
    return share;
  }

  #timesOf({ input_tokens, output_tokens }: Lengths): SimulatedServiceTimes {
    const known = this.#times;
    if (known?.lengths.input_tokens === input_tokens && known.lengths.output_tokens === output_tokens)
      return known;
    const { model, limits } = this.#replica;
    this.#times = new SimulatedServiceTimes(model, limits, { input_tokens, output_tokens });
    return this.#times;
  }

  #steadyState(load: ReplicaLoad): SteadyState {
    const { rate_per_s, output_tokens } = load;
    if (!(rate_per_s >= 0) || !(load.input_tokens >= 1) || !(output_tokens >= 1))
      throw new HpcserveError('E_SIMULATION_INPUT', {
        what: 'a load that cannot be estimated',
        because: `rate ${rate_per_s} per second, ${load.input_tokens} tokens in, ${output_tokens} tokens out`,
      });
    const times = this.#timesOf(load);
    const { most: top, max_rate_per_s } = times;
    const utilization = rate_per_s / max_rate_per_s;
    const chain = runningSequences(times, rate_per_s);
    const { running, empty } = chain;
    const served = Math.min(rate_per_s, max_rate_per_s);
    const prompt = times.added(running);
    const path = times.promptPath(served, running, 1 - empty);
    return {
      times,
      running,
      utilization,
      max_rate_per_s,
      empty,
      decode: times.decode(Math.max(1, running)),
      prompt,
      prompt_share: Math.min(0.999, served * prompt),
      path,
      tpot: chain.tpot,
      tpot_variance: tpotVariance(chain, prompt / Math.max(1, times.decoded), served * prompt, path.behind),
      slot: settlingWait(
        chain.all_taken,
        top / (Math.max(1, times.decoded) * times.token(top, served, 0)),
        utilization,
        rate_per_s,
      ),
      overload: (Math.max(0, utilization - 1) * horizon_s) / 2,
    };
  }

  #leastTtft({ path }: SteadyState): number {
    return path.own + this.#replica.model.input.calibration.engine.request_s;
  }

  #power({ input_tokens }: ReplicaLoad, state: SteadyState): number {
    const { running, decode, prompt, prompt_share, empty } = state;
    const computeOf = (tokens: number, seconds: number): number =>
      (tokens * this.#flops_per_token) / (seconds * this.#reached_flops);
    const phases = [
      { time_share: prompt_share, compute: computeOf(input_tokens, prompt) },
      { time_share: (1 - prompt_share) * (1 - empty), compute: computeOf(Math.max(1, running), decode) },
    ];
    const taken = phases.filter(({ time_share }) => time_share > 0);
    return this.#devices * devicePower(this.#replica.model.input.device, taken);
  }
}

/**
 * How the TPOT of single requests varies. Arrivals are Poisson; in a request's time T come B = λT of them, as
 * many as came in the time T before. One that comes when a share x of T is left slows its tokens by
 * p + x k: its prompt, spread over all tokens (with those that come because of the delay), and one sequence
 * more for the rest of the time. Those from before leave at even moments and add x k. So the variance is
 * B ∫ (p + x k)² + (x k)² dx = B (p² + p k + 2k²/3); prompts that waited at the first token add their own.
 */
function tpotVariance(
  { running, token_variance }: Chain,
  prompt_per_token: number,
  prompt_share: number,
  behind: number,
): number {
  const p = prompt_per_token / Math.max(0.01, 1 - prompt_share);
  const k = running === 0 ? 0 : Math.sqrt(token_variance / running);
  return running * (p * p + p * k + (2 / 3) * k * k) + (behind + behind ** 2) * p * p;
}

interface Chain {
  /** Mean number that runs, and the probabilities that none does and that all places are taken. */
  running: number;
  empty: number;
  all_taken: number;
  tpot: number;
  /** Of the time of a token, over what requests find when they come. */
  token_variance: number;
}

/** The chain's distribution: w(n) = w(n − 1) · λ μ t(n) / n up to the most that can run, a geometric tail beyond. */
function runningSequences(times: SimulatedServiceTimes, offered: number): Chain {
  // Above capacity the chain has no steady state; just below, all places are taken as good as always.
  const rate = Math.min(offered, 0.9999 * times.max_rate_per_s);
  // How many prompts wait depends on how many sequences run, and the other way round.
  const guess = chainOf(times, rate, 0);
  return chainOf(times, rate, times.promptPath(rate, guess.running, 1 - guess.empty).behind);
}

function chainOf(times: SimulatedServiceTimes, rate: number, backlog: number): Chain {
  const { most, max_rate_per_s } = times;
  const { decoded } = times;
  const token = (sequences: number): number => times.token(sequences, rate, backlog);
  let weight = 1;
  let total = 1;
  let empty = 1;
  let count = 0;
  let first = 0;
  let second = 0;
  for (let n = 1; n <= most; n++) {
    const t = token(n);
    // An arrival that finds n − 1 runs with n.
    first += weight * t;
    second += weight * t * t;
    weight *= (rate * decoded * t) / n;
    if (weight > 1e200) {
      const scale = 1e-200;
      weight *= scale;
      total *= scale;
      empty *= scale;
      count *= scale;
      first *= scale;
      second *= scale;
    }
    total += weight;
    count += n * weight;
  }
  const ratio = rate / max_rate_per_s;
  const beyond = (weight * ratio) / (1 - ratio);
  const seen = total;
  const tMean = first / (seen - weight);
  const variance = Math.max(0, second / (seen - weight) - tMean ** 2);
  total += beyond;
  count += most * beyond;
  const running = count / total;
  return {
    running,
    empty: empty / total,
    all_taken: (weight + beyond) / total,
    tpot: rate * decoded === 0 ? token(1) : running / (rate * decoded),
    token_variance: variance,
  };
}

/** Mean of a function over 0 to 1, by the midpoint rule: monotone where the function is. */
function meanOver(of: (at: number) => number, points = 48): number {
  let total = 0;
  for (let k = 0; k < points; k++) total += of((k + 0.5) / points);
  return total / points;
}
