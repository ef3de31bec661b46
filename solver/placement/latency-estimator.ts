/** What the serving simulator expects of an option: L of LLMFabric's Eq. 1, and what the other objectives count. */
import { defaultSlo, type PlannedWorkload, type Prediction, type ResolvedEngine } from '../../spec/plan.ts';
import type { DeviceSpec } from '../catalog/device-spec.ts';
import { kvBits } from '../catalog/kv-type.ts';
import { weightPrecisionIfKnown } from '../catalog/weight-precision.ts';
import { standInsFor } from '../simulator/calibration.ts';
import type { SimulatedEngine } from '../simulator/constants.ts';
import type { ReplicaConfig } from '../simulator/deployment.ts';
import { LatencyModel, type LatencyTargets } from '../simulator/latency.ts';
import { linkBetween } from './lenders.ts';
import { streamedStep, workloadOf } from './model-facts.ts';
import type { PlacementOption } from './options.ts';

/** Engines by whose constants they are predicted; those without their own are taken for the most similar. */
const simulatedAs: Readonly<Record<ResolvedEngine, SimulatedEngine>> = {
  native: 'native',
  vllm: 'vllm',
  sglang: 'sglang',
  'llama.cpp': 'llamacpp',
  lmdeploy: 'vllm',
  'tensorrt-llm': 'trtllm',
  tgi: 'tgi',
  transformers: 'tgi',
  ollama: 'llamacpp',
  command: 'vllm',
};

/**
 * Asks the simulator once for each configuration and rate. One of these may serve many questions: what it remembers
 * depends on nothing but configurations, so a re-plan after a node joined or left asks for almost nothing.
 */
export class LatencyEstimator {
  /** Configurations by option, and what is known of each. */
  readonly #keys = new WeakMap<PlacementOption, string>();
  readonly #models = new Map<string, LatencyModel>();
  readonly #predictions = new Map<string, Map<string, Prediction>>();

  /**
   * What `replicas` replicas that share `share` of the model's requests evenly may expect; undefined where nothing
   * is known of the model.
   */
  predict(option: PlacementOption, replicas: number, share: number): Prediction | undefined {
    const workload = computedOf(option);
    const rate = (workload.rate_per_s * share) / replicas;
    const key = this.#keyOf(option);
    if (key === undefined) return undefined;
    let known = this.#predictions.get(key);
    if (known === undefined) {
      known = new Map();
      this.#predictions.set(key, known);
    }
    const slo = sloOf(option);
    const load = [rate, workload.input_tokens, workload.output_tokens, slo.ttft_ms, slo.tpot_ms].join();
    let each = known.get(load);
    if (each === undefined) {
      each = this.#predictOne(option, rate, workload);
      if (each === undefined) return undefined;
      known.set(load, each);
    }
    return {
      ...each,
      max_rate_per_s: each.max_rate_per_s * replicas,
      output_tokens_per_s: each.output_tokens_per_s * replicas,
      power_w: each.power_w * replicas,
    };
  }

  /** Requests per second one replica sustains at the model's lengths; undefined where nothing is known. */
  maxRate(option: PlacementOption): number | undefined {
    const { input_tokens, output_tokens } = computedOf(option);
    return this.#modelOf(option)?.maxRate({ input_tokens, output_tokens });
  }

  #predictOne(
    option: PlacementOption,
    rate_per_s: number,
    { input_tokens, output_tokens }: PlannedWorkload,
  ): Prediction | undefined {
    const model = this.#modelOf(option);
    if (model === undefined) return undefined;
    const load = { rate_per_s, input_tokens, output_tokens };
    const estimate = model.estimate(load);
    const { pool } = option.model;
    return {
      ttft_ms: pool === 'decode' ? 0 : estimate.ttft_ms,
      tpot_ms: pool === 'prefill' ? 0 : estimate.tpot_ms,
      e2e_ms: estimate.e2e_ms,
      slo_attainment: model.attainment(load, sloOf(option)),
      utilization: estimate.utilization,
      max_rate_per_s: estimate.max_rate_per_s,
      output_tokens_per_s: Math.min(rate_per_s, estimate.max_rate_per_s) * output_tokens,
      power_w: estimate.power_w,
    };
  }

  #modelOf(option: PlacementOption): LatencyModel | undefined {
    const key = this.#keyOf(option);
    const config = configOf(option);
    if (key === undefined || config === undefined) return undefined;
    let model = this.#models.get(key);
    if (model === undefined) {
      model = new LatencyModel(config, option.model.pool);
      this.#models.set(key, model);
    }
    return model;
  }

  /** Equal for options that are the same to the simulator. */
  #keyOf(option: PlacementOption): string | undefined {
    const known = this.#keys.get(option);
    if (known !== undefined) return known;
    const config = configOf(option);
    if (config === undefined) return undefined;
    const key = JSON.stringify([option.model.pool, config]);
    this.#keys.set(option, key);
    return key;
  }
}

/** What a replica has of a request: one of a prefill pool computes the first token, and no other. */
function computedOf({ model }: PlacementOption): PlannedWorkload {
  const workload = workloadOf(model);
  return model.pool === 'prefill' ? { ...workload, output_tokens: 1 } : workload;
}

/** What it is to keep of what is promised: each pool its part. */
function sloOf({ model: { pool, spec } }: PlacementOption): LatencyTargets {
  const { ttft_ms = defaultSlo.ttft_ms, tpot_ms = defaultSlo.tpot_ms } = spec.slo;
  if (pool === 'prefill') return { ttft_ms };
  return pool === 'decode' ? { tpot_ms } : { ttft_ms, tpot_ms };
}

/** Whose measurements predictions for an option rest on, where they are not its own; one clause each. */
export function uncalibrated({ engine, device }: PlacementOption): string[] {
  const simulated = simulatedAs[engine];
  const own = simulated === engine || (engine === 'llama.cpp' && simulated === 'llamacpp');
  const same = own || (engine === 'tensorrt-llm' && simulated === 'trtllm');
  return [
    ...(same ? [] : [`${engine} is uncalibrated; taken for ${simulated}`]),
    ...standInsFor(simulated, device.family),
  ];
}

/**
 * Devices and what joins them. A link counts within a node: whether the nodes of a job share a rack nobody knows
 * before. Where stages are lent by nodes of another kind, all of them have the pace of the slowest.
 */
function placesOf(option: PlacementOption): Pick<ReplicaConfig, 'device' | 'interconnect'> {
  const { nodes, device_count, offer, lender, lent } = option;
  if (nodes === 1) return { device: option.device };
  const device = lent && !lent.isAlike ? slower(option.device, lent.slowdown) : option.device;
  const devices = Math.min(device.link.devices, device_count / nodes);
  return {
    device: { ...device, link: { ...device.link, devices } },
    interconnect: linkBetween(offer, lender),
  };
}

/** A device that takes so many times as long for everything. */
function slower(device: DeviceSpec, times: number): DeviceSpec {
  const peaks = Object.entries(device.peak_flops_per_s).map(([precision, peak]) => [precision, peak / times]);
  return {
    ...device,
    peak_flops_per_s: Object.fromEntries(peaks),
    memory_bandwidth_bytes_per_s: device.memory_bandwidth_bytes_per_s / times,
  };
}

/** Undefined where nothing is known of the model. */
function configOf(option: PlacementOption): ReplicaConfig | undefined {
  const { model, shape } = option;
  if (shape === undefined) return undefined;
  const precision = weightPrecisionIfKnown(option.precision);
  const config: ReplicaConfig = {
    model: precision === undefined ? shape : { ...shape, weights: precision },
    ...placesOf(option),
    engine: simulatedAs[option.engine],
    tp: option.tensor,
    pp: option.pipeline,
    max_sequences: option.seen?.max_sequences ?? option.batch.max_sequences,
    kv_tokens: option.seen?.kv_tokens ?? option.memory.kv_tokens,
    kv_bits: kvBits(option.engine, model, option.precision),
    max_batched_tokens: option.batch.batched_tokens,
  };
  const { arena_bytes, resident_bytes } = option.memory;
  if (arena_bytes !== undefined) {
    const { device, seen, link_share } = option;
    const { dense_s, experts_s } = streamedStep(model, device, seen, resident_bytes, link_share);
    config.streamed_s = dense_s;
    if (experts_s > 0) config.streamed_experts_s = experts_s;
  }
  return config;
}
