/** One group of equal replicas: a model on devices, with an engine and its limits. */

import { HpcserveError } from '../../spec/errors/error.ts';
import type { DeviceSpec } from '../catalog/device-spec.ts';
import { findInterconnect } from '../catalog/devices.ts';
import type { Interconnect } from '../catalog/interconnects.ts';
import type { ModelShape } from '../catalog/model-shape.ts';
import type { BatchingLimits } from './batching.ts';
import { type Calibration, calibrationFor, type SimulatedEngine } from './calibration.ts';
import { type MemoryPlan, type MemoryShare, planMemory } from './memory.ts';
import { StepModel } from './step-model.ts';

export interface ReplicaConfig {
  model: ModelShape;
  device: DeviceSpec;
  engine: SimulatedEngine;
  /** Tensor-parallel degree: divides the heads. */
  tp: number;
  /** Pipeline stages: at most one a layer. */
  pp: number;
  /** Replaces the constants that engine and device have; `roofline` gives a roofline alone. */
  calibration?: Calibration;
  interconnect?: Interconnect;
  /** Of an element of the KV cache, scales included; 16 where it is not said. */
  kv_bits?: number;
  max_sequences?: number;
  max_batched_tokens?: number;
  /** Share of device memory the engine may use. */
  memory_utilization?: number;
  /** Instead of what memory allows. */
  kv_tokens?: number;
  chunked_prefill?: boolean;
  /** Weights lie in host memory, and each step brings all of them in this time, while it computes. */
  streamed_s?: number;
  /** The same of experts, in a step that needs all of them; others bring those that their tokens are sent to. */
  streamed_experts_s?: number;
}

export interface ConfiguredReplica {
  config: ReplicaConfig;
  model: StepModel;
  memory: MemoryPlan;
  limits: BatchingLimits;
}

/** What engines do unless told otherwise: vLLM 0.10+ (V1), vLLM 0.6 (V0), TensorRT-LLM 1.0, and ours. */
const engineDefaults: Readonly<
  Record<
    SimulatedEngine,
    {
      sequences: number;
      tokens: number;
      chunked: boolean;
      admission: 'grow' | 'reserve';
      memory?: MemoryShare;
    }
  >
> = {
  vllm: { sequences: 256, tokens: 2048, chunked: true, admission: 'grow' },
  'vllm-v0': { sequences: 256, tokens: 8192, chunked: false, admission: 'grow' },
  sglang: { sequences: 256, tokens: 2048, chunked: true, admission: 'grow' },
  trtllm: { sequences: 256, tokens: 2048, chunked: true, admission: 'reserve', memory: 'of free' },
  tgi: { sequences: 128, tokens: 4096, chunked: true, admission: 'reserve' },
  llamacpp: { sequences: 8, tokens: 2048, chunked: true, admission: 'grow' },
  native: { sequences: 64, tokens: 512, chunked: true, admission: 'grow' },
  openvino: { sequences: 256, tokens: 256, chunked: true, admission: 'grow' },
};

/**
 * Checks a configuration and works out its limits.
 * @throws E_SIMULATION_INPUT for degrees that do not divide the model, E_SIMULATION_MEMORY where it does not fit
 */
export function replicaOf(config: ReplicaConfig, role: BatchingLimits['role'] = 'both'): ConfiguredReplica {
  const { model: shape, device, tp, pp } = config;
  checkDegree('tensor', tp);
  checkDegree('pipeline', pp);
  if (shape.n_head % tp !== 0)
    throw new HpcserveError('E_SIMULATION_INPUT', {
      what: `${shape.name} cannot be split over ${tp} devices`,
      because: `its ${shape.n_head} heads do not divide by ${tp}`,
      try: `use a tensor-parallel degree of ${divisors(shape.n_head, 64).join(', ')}`,
    });
  if (pp > shape.n_layer)
    throw new HpcserveError('E_SIMULATION_INPUT', {
      what: `${shape.name} has ${shape.n_layer} layers, fewer than ${pp} pipeline stages`,
    });
  checkLimit('sequences at once', config.max_sequences);
  checkLimit('tokens of one step', config.max_batched_tokens);
  checkShare(config.memory_utilization);
  const defaults = engineDefaults[config.engine];
  const max_sequences = config.max_sequences ?? defaults.sequences;
  const max_batched_tokens = Math.max(config.max_batched_tokens ?? defaults.tokens, max_sequences);
  const kv_bits = config.kv_bits ?? 16;
  const memory = planMemory(shape, device, {
    tp,
    pp,
    kv_bits,
    utilization: config.memory_utilization ?? 0.9,
    share: defaults.memory ?? 'of all',
    max_batched_tokens,
    max_sequences,
  });
  const kv_tokens = config.kv_tokens ?? memory.kv_tokens;
  if (kv_tokens < 16)
    throw new HpcserveError('E_SIMULATION_MEMORY', {
      what: `${shape.name} in ${shape.weights.name} does not fit on ${tp * pp} × ${device.name}`,
      because: `each device would hold ${gib(memory.weight_bytes)} of weights and ${gib(memory.reserve_bytes)} of activations and buffers, of ${gib(device.memory_bytes * (config.memory_utilization ?? 0.9))} it may use`,
      details: { ...memory, device_bytes: device.memory_bytes },
    });
  const calibration = config.calibration ?? calibrationFor(config.engine, device.family);
  return {
    config,
    memory,
    model: new StepModel({
      shape,
      device,
      tp,
      pp,
      kv_bits,
      calibration,
      interconnect: config.interconnect ?? findInterconnect('slingshot-11'),
      streamed_s: config.streamed_s,
      streamed_experts_s: config.streamed_experts_s,
    }),
    limits: {
      max_sequences,
      max_batched_tokens,
      kv_tokens,
      block_tokens: 16,
      admission: defaults.admission,
      prompts: (config.chunked_prefill ?? defaults.chunked) ? 'chunked' : 'prompts-first',
      role,
      concurrency: 0,
    },
  };
}

function checkDegree(kind: string, degree: number): void {
  if (Number.isSafeInteger(degree) && degree >= 1 && degree <= 1024) return;
  throw new HpcserveError('E_SIMULATION_INPUT', {
    what: `a ${kind}-parallel degree of ${degree} is not possible`,
    because: 'a whole number from 1 to 1024 is needed',
  });
}

function checkLimit(what: string, limit: number | undefined): void {
  if (limit === undefined || (Number.isSafeInteger(limit) && limit >= 1 && limit <= 1e6)) return;
  throw new HpcserveError('E_SIMULATION_INPUT', {
    what: `a limit of ${limit} ${what} is out of range`,
    because: 'a whole number from 1 to 1000000 is needed',
  });
}

function checkShare(value: number | undefined): void {
  if (value === undefined || (value > 0 && value <= 1)) return;
  throw new HpcserveError('E_SIMULATION_INPUT', {
    what: `a memory utilization of ${value} is out of range`,
    because: 'it is a share of device memory, above 0 and at most 1',
  });
}

function divisors(of: number, most: number): number[] {
  return Array.from({ length: Math.min(of, most) }, (_, i) => i + 1).filter((d) => of % d === 0);
}

function gib(bytes: number): string {
  return `${(bytes / 2 ** 30).toFixed(1)} GiB`;
}
