/**
 * L of LLMFabric's Eq. 1: the latency a placement may expect, worked out in closed form in microseconds, for
 * searches that ask about thousands of options. `simulateServing` answers the same with queues and bursts.
 */
import { HpcserveError } from '../../spec/errors/error.ts';
import { activeParameters } from '../catalog/model-shape.ts';
import { type ReplicaConfig, replicaOf } from './deployment.ts';
import { computeOn } from './operators.ts';
import { devicePower } from './power.ts';
import {
  gammaShareBelow,
  horizon_s,
  meanWait,
  singleServerWait,
  slotWait,
  type Wait,
  waitsLonger,
} from './waiting.ts';

/** What arrives at one replica: w = ⟨λ, μ_in, μ_out⟩ of LLMFabric §3.3. */
export interface ReplicaLoad {
  rate_per_s: number;
  input_tokens: number;
  output_tokens: number;
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

/** Answers for one kind of replica, for any load. */
export interface LatencyModel {
  /** @throws E_SIMULATION_INPUT for a negative rate or lengths below one token */
  estimate(load: ReplicaLoad): LatencyEstimate;
  /**
   * Share of requests that meet the targets, 0 to 1; falls with the load, rises with the targets. Of a replica
   * that is offered more than it can take, those of the first hour.
   * @throws as estimate
   */
  attainment(load: ReplicaLoad, targets: LatencyTargets): number;
  /** The most requests per second at these lengths. */
  maxRate(lengths: Lengths): number;
}

type Lengths = Omit<ReplicaLoad, 'rate_per_s'>;

/** The steady state under one load; times in seconds. */
interface SteadyState {
  running: number;
  utilization: number;
  max_rate_per_s: number;
  /** One decode step at `running` sequences. */
  decode: number;
  /** What one prompt adds to the steps it shares, and its way through them when nothing is before it. */
  prompt: number;
  prompt_alone: number;
  /** Share of time that prompts take. */
  prompt_share: number;
  tpot: number;
  prompts_ahead: Wait;
  slot: Wait;
  /** Mean of the wait that grows over the horizon above capacity; uniform between 0 and twice that. */
  overload: number;
}

/**
 * Steady state: with B sequences decoding, a step lasts s(B); each arrival adds its prompt's time p to the
 * steps of all. So TPOT = s(B) / (1 − λp), and by Little's law B = λ · μ_out · TPOT. B is found by
 * bisection between 0 and what the KV cache and the sequence limit allow. Before its first token a request
 * waits for the step that runs, for prompts ahead of it and for a place in the batch (`waiting.ts`).
 * @throws what `replicaOf` throws
 */
export function latencyModel(config: ReplicaConfig): LatencyModel {
  const { model, limits } = replicaOf(config);
  const { pp, tp, device, shape, calibration } = model.input;
  const alone = limits.prompts === 'prompts-first';
  const devices = tp * pp;
  const flops_per_token = (2 * activeParameters(shape)) / devices;
  const reached_flops =
    (device.peak_flops_per_s[computeOn(device, shape.weights.compute)] ?? 1) *
    calibration.device.gemm_compute;

  /** Between whole numbers of sequences, as the mean over time that has some of either. */
  const between = (running: number, at: (sequences: number) => number): number => {
    const low = Math.floor(running);
    const part = running - low;
    return part === 0 ? at(low) : at(low) * (1 - part) + at(low + 1) * part;
  };
  const decodeAt = (sequences: number, { input_tokens, output_tokens }: Lengths): number => {
    const context = input_tokens + output_tokens / 2;
    const batch = Math.max(1, sequences);
    return model.stepSeconds(batch, batch * context, batch * Math.min(model.window, context));
  };
  const decodeSeconds = (running: number, lengths: Lengths): number =>
    between(Math.max(1, running), (sequences) => decodeAt(sequences, lengths));

  /** Steps that hold parts of one prompt, with so many sequences decoding beside it. */
  const promptSteps = (tokens: number, decoding: number): number =>
    Math.ceil(tokens / Math.max(1, limits.max_batched_tokens * pp - decoding));
  /** Time of these steps, whole. */
  const promptAt = (sequences: number, lengths: Lengths): number => {
    const { input_tokens } = lengths;
    const decoding = alone ? 0 : sequences;
    const context = input_tokens + lengths.output_tokens / 2;
    const keys = decoding * context;
    const windowed = decoding * Math.min(model.window, context);
    const steps = alone ? 1 : promptSteps(input_tokens, decoding);
    const chunk = Math.min(input_tokens, limits.max_batched_tokens * pp - decoding);
    const last = input_tokens - (steps - 1) * chunk;
    const step = (tokens: number, isLast: boolean): number =>
      model.stepSeconds(decoding, keys, windowed, [{ tokens, before: 0, last: isLast }]) -
      model.prefillAttentionSeconds(tokens, 0) / pp;
    if (alone) return model.stepSeconds(0, 0, 0, [{ tokens: input_tokens, before: 0, last: true }]);
    return (
      (steps > 1 ? (steps - 1) * step(chunk, false) : 0) +
      step(last, true) +
      model.prefillAttentionSeconds(input_tokens, 0) / pp
    );
  };
  /** What a prompt adds to the engine's time: its steps, less the decoding that they also carry. */
  const addedAt = (sequences: number, lengths: Lengths): number =>
    promptAt(sequences, lengths) -
    (alone || sequences < 1
      ? 0
      : promptSteps(lengths.input_tokens, sequences) * decodeAt(sequences, lengths));

  const mostRunning = ({ input_tokens, output_tokens }: Lengths): number => {
    const perSequence =
      limits.admission === 'reserve' ? input_tokens + output_tokens : input_tokens + output_tokens / 2;
    return Math.max(1, Math.min(limits.max_sequences * pp, Math.floor(limits.kv_tokens / perSequence)));
  };
  /** Rate that keeps so many sequences busy: one leaves every μ_out · s / B, each adding p. */
  const rateAt = (sequences: number, lengths: Lengths): number =>
    1 / ((lengths.output_tokens * decodeAt(sequences, lengths)) / sequences + addedAt(sequences, lengths));

  /** Searches ask about the same lengths at many rates. */
  let last: { lengths: Lengths; top: number; max_rate_per_s: number } | undefined;
  const capacityOf = ({ input_tokens, output_tokens }: Lengths): NonNullable<typeof last> => {
    if (last?.lengths.input_tokens === input_tokens && last.lengths.output_tokens === output_tokens)
      return last;
    const lengths = { input_tokens, output_tokens };
    const top = mostRunning(lengths);
    last = { lengths, top, max_rate_per_s: rateAt(top, lengths) };
    return last;
  };

  const runningAt = (rate: number, top: number, lengths: Lengths): number => {
    let low = 0;
    let high = top;
    let lowRate = 0;
    let highRate = Number.NaN;
    while (high - low > 1) {
      const middle = Math.floor((low + high) / 2);
      const reached = rateAt(middle, lengths);
      if (reached < rate) {
        low = middle;
        lowRate = reached;
      } else {
        high = middle;
        highRate = reached;
      }
    }
    if (Number.isNaN(highRate)) highRate = rateAt(high, lengths);
    return low + Math.min(1, (rate - lowRate) / (highRate - lowRate));
  };

  const steadyState = ({ rate_per_s, ...lengths }: ReplicaLoad): SteadyState => {
    if (!(rate_per_s >= 0) || !(lengths.input_tokens >= 1) || !(lengths.output_tokens >= 1))
      throw new HpcserveError('E_SIMULATION_INPUT', {
        what: 'a load that cannot be estimated',
        because: `rate ${rate_per_s} per second, ${lengths.input_tokens} tokens in, ${lengths.output_tokens} tokens out`,
      });
    const { top, max_rate_per_s } = capacityOf(lengths);
    const utilization = rate_per_s / max_rate_per_s;
    const running = utilization >= 1 ? top : runningAt(rate_per_s, top, lengths);
    const served = Math.min(rate_per_s, max_rate_per_s);
    const prompt = between(running, (sequences) => addedAt(sequences, lengths));
    const prompt_alone = between(running, (sequences) => promptAt(sequences, lengths));
    const decode = decodeSeconds(running, lengths);
    const prompt_share = Math.min(0.999, served * prompt);
    const tpot = decode / (1 - prompt_share);
    return {
      running,
      utilization,
      max_rate_per_s,
      decode,
      prompt,
      prompt_alone,
      prompt_share,
      tpot,
      prompts_ahead: singleServerWait(prompt_share, prompt),
      slot: slotWait(utilization, top, prompt_alone + lengths.output_tokens * tpot, rate_per_s),
      overload: (Math.max(0, utilization - 1) * horizon_s) / 2,
    };
  };

  /** Time to the first token before any waiting. */
  const leastTtft = (state: SteadyState): number => state.prompt_alone + calibration.engine.request_s;
  /** The step that runs when a request comes lasts half its time on average. */
  const residual = (state: SteadyState): number => state.decode * (1 - Math.exp(-state.running));

  return {
    maxRate: (lengths) => capacityOf(lengths).max_rate_per_s,

    estimate(load) {
      const state = steadyState(load);
      const ttft =
        leastTtft(state) +
        residual(state) / 2 +
        meanWait(state.prompts_ahead) +
        meanWait(state.slot) +
        state.overload;
      const { running, utilization, max_rate_per_s, tpot, decode, prompt, prompt_share } = state;
      const decoding = (1 - prompt_share) * (1 - Math.exp(-running));
      const computeOf = (tokens: number, seconds: number): number =>
        (tokens * flops_per_token) / (seconds * reached_flops);
      return {
        ttft_ms: ttft * 1e3,
        tpot_ms: tpot * 1e3,
        e2e_ms: (ttft + tpot * (load.output_tokens - 1)) * 1e3,
        running,
        utilization,
        max_rate_per_s,
        power_w:
          devices *
          devicePower(device, [
            { time_share: prompt_share, compute: computeOf(load.input_tokens, prompt) },
            { time_share: decoding, compute: computeOf(Math.max(1, running), decode) },
          ]),
      };
    },

    attainment(load, targets) {
      const state = steadyState(load);
      let share = 1;
      if (targets.ttft_ms !== undefined) {
        const left = targets.ttft_ms / 1e3 - leastTtft(state);
        share = meanOver(
          (at) =>
            1 -
            waitsLonger(
              state.prompts_ahead,
              state.slot,
              left - at * residual(state) - at * 2 * state.overload,
            ),
        );
      }
      if (targets.tpot_ms !== undefined && load.output_tokens > 1) {
        const least = decodeAt(1, load);
        const spread = tpotVariance(state, load);
        share *= gammaShareBelow(targets.tpot_ms / 1e3 - least, Math.max(0, state.tpot - least), spread);
        // Those that are not served within the horizon meet no target.
        if (targets.ttft_ms === undefined) share /= Math.max(1, state.utilization);
      }
      return share;
    },
  };

  /**
   * Requests differ in TPOT by how many others run beside them and how many prompts come meanwhile. The number
   * running is Poisson with mean B and forgets itself within a request's time, over which it is averaged: its
   * variance falls to 2/e. Prompts are Poisson too: each adds p to the μ_out steps.
   */
  function tpotVariance(state: SteadyState, load: ReplicaLoad): number {
    const { running, tpot, prompt, prompt_share } = state;
    const wider = running + Math.sqrt(running);
    const slope =
      running === 0
        ? 0
        : (decodeSeconds(wider, load) - state.decode) / ((wider - running) * (1 - prompt_share));
    const prompts = Math.min(load.rate_per_s, state.max_rate_per_s) * load.output_tokens * tpot;
    return (2 / Math.E) * running * slope ** 2 + (prompts * prompt ** 2) / load.output_tokens ** 2;
  }
}

/** Mean of a function over 0 to 1, by the midpoint rule: monotone where the function is. */
function meanOver(of: (at: number) => number, points = 16): number {
  let total = 0;
  for (let k = 0; k < points; k++) total += of((k + 0.5) / points);
  return total / points;
}
