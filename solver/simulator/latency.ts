/**
 * L of LLMFabric's Eq. 1: the latency a placement may expect, worked out in closed form in microseconds, for
 * searches that ask about thousands of options. `simulateServing` answers the same with queues and bursts.
 */
import { HpcserveError } from '../../spec/errors/error.ts';
import { type ReplicaConfig, replicaOf } from './deployment.ts';

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
}

/** Answers for one kind of replica, for any load. */
export interface LatencyModel {
  estimate(load: ReplicaLoad): LatencyEstimate;
  /** The most requests per second at these lengths. */
  maxRate(lengths: Omit<ReplicaLoad, 'rate_per_s'>): number;
}

/**
 * Steady state: with B sequences decoding, a step lasts s(B); each arrival adds its prompt's time p to the
 * steps of all. So TPOT = s(B) / (1 − λp), and by Little's law B = λ · μ_out · TPOT. B is found by
 * bisection between 0 and what the KV cache and the sequence limit allow. Waiting before the first token is
 * that of an M/G/1 queue for prompts.
 * @throws what `replicaOf` throws
 */
export function latencyModel(config: ReplicaConfig): LatencyModel {
  const { model, limits } = replicaOf(config);
  const chunk = limits.max_batched_tokens;

  /** Seconds a prompt adds to the engine's time when it shares steps that run anyway. */
  const promptSeconds = (tokens: number): number => {
    let seconds = 0;
    for (let before = 0; before < tokens; before += chunk) {
      const part = Math.min(chunk, tokens - before);
      seconds += model.stepSeconds(0, 0, 0, [{ tokens: part, before, last: before + part >= tokens }]);
    }
    return seconds;
  };
  /** … less the weights' reading, which the decode step pays for already. */
  const sharedSeconds = (tokens: number, running: number): number => {
    const alone = promptSeconds(tokens);
    if (running < 1) return alone;
    return Math.max(alone - model.stepSeconds(1, 1, 1) * Math.ceil(tokens / chunk), 0.5 * alone);
  };
  const decodeSeconds = (running: number, { input_tokens, output_tokens }: Lengths): number => {
    const keys = running * (input_tokens + output_tokens / 2);
    const windowed = running * Math.min(model.window, input_tokens + output_tokens / 2);
    return model.stepSeconds(Math.max(1, running), keys, windowed);
  };
  const mostRunning = ({ input_tokens, output_tokens }: Lengths): number => {
    const perSequence =
      limits.admission === 'reserve' ? input_tokens + output_tokens : input_tokens + output_tokens / 2;
    return Math.max(1, Math.min(limits.max_sequences * model.input.pp, limits.kv_tokens / perSequence));
  };
  /** Rate that keeps `running` sequences busy: one leaves every μ_out · s / B, each adding p. */
  const rateAt = (running: number, lengths: Lengths): number =>
    1 /
    ((lengths.output_tokens * decodeSeconds(running, lengths)) / running +
      sharedSeconds(lengths.input_tokens, running));

  const maxRate = (lengths: Lengths): number => rateAt(mostRunning(lengths), lengths);

  return {
    maxRate,
    estimate({ rate_per_s, ...lengths }) {
      if (!(rate_per_s >= 0) || !(lengths.input_tokens >= 1) || !(lengths.output_tokens >= 1))
        throw new HpcserveError('E_SIMULATION_INPUT', {
          what: 'a load that cannot be estimated',
          because: `rate ${rate_per_s} per second, ${lengths.input_tokens} tokens in, ${lengths.output_tokens} tokens out`,
        });
      const top = mostRunning(lengths);
      const max_rate_per_s = rateAt(top, lengths);
      const utilization = rate_per_s / max_rate_per_s;
      let low = 0;
      let high = top;
      if (utilization >= 1) low = top;
      else
        for (let turn = 0; turn < 40; turn++) {
          const middle = (low + high) / 2;
          if (rateAt(middle, lengths) < rate_per_s) low = middle;
          else high = middle;
        }
      const running = utilization >= 1 ? top : high;
      const prompt = sharedSeconds(lengths.input_tokens, running);
      const decode = decodeSeconds(running, lengths);
      const busyWithPrompts = Math.min(0.999, rate_per_s * prompt);
      const tpot = decode / (1 - busyWithPrompts);
      const queue = (busyWithPrompts * prompt) / (2 * (1 - busyWithPrompts));
      // Above capacity the queue has no steady state; a term that grows steeply keeps comparisons meaningful.
      const overload = utilization < 1 ? 0 : (utilization - 1 + 1e-3) * 3600;
      const ttft =
        promptSeconds(lengths.input_tokens) +
        (running >= 1 ? decode / 2 : 0) +
        queue +
        overload +
        model.input.calibration.engine.request_s;
      return {
        ttft_ms: ttft * 1e3,
        tpot_ms: tpot * 1e3,
        e2e_ms: (ttft + tpot * (lengths.output_tokens - 1)) * 1e3,
        running,
        utilization,
        max_rate_per_s,
      };
    },
  };
}

type Lengths = Omit<ReplicaLoad, 'rate_per_s'>;
