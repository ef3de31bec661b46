/** Written by `node dist/bench/calibrate/main.js`; docs/simulator.md says how. Do not edit by hand. */
// biome-ignore-all lint/suspicious/noApproximativeNumericConstant: measured, and near a constant by chance
import type { DeviceFamily } from '../../catalog/device-spec.ts';
import type { DeviceConstants, EngineConstants, SimulatedEngine } from '../calibration.ts';

export interface Fitted<T> {
  constants: T;
  /** The measurements they were fitted to. */
  source: string;
}

export const deviceConstants: Readonly<Partial<Record<DeviceFamily, Fitted<DeviceConstants>>>> = {
  ampere: {
    constants: {
      gemm_compute: 0.732,
      gemm_compute_narrow: 0.732,
      gemm_memory: 0.809,
      gemm_pad_rows: 80.8,
      gemm_sharpness: 6.61,
      gemm_s: 0.000005,
      attention_compute: 0.534,
      attention_memory: 0.59,
      elementwise_memory: 0.464,
      ring_s: 0.0000444,
      ring_hop_s: 7.78e-7,
      ring_bandwidth: 0.57,
      ring_bandwidth_many: 0.503,
    },
    source:
      'products, small operators and rings: Vidur profiles (github.com/microsoft/vidur, MIT), TP 1 and 4; attention: LLM-Mesh measurements, llama-2-7b and llama-3.1-8b on A100-80GB',
  },
  hopper: {
    constants: {
      gemm_compute: 0.713,
      gemm_compute_narrow: 0.779,
      gemm_memory: 0.942,
      gemm_pad_rows: 87.6,
      gemm_sharpness: 5.08,
      gemm_s: 0.00000747,
      attention_compute: 0.693,
      attention_memory: 0.797,
      elementwise_memory: 0.819,
      ring_s: 0.000026,
      ring_hop_s: 7.09e-7,
      ring_bandwidth: 0.693,
      ring_bandwidth_many: 0.772,
    },
    source:
      'products, small operators and rings: Vidur profiles (github.com/microsoft/vidur, MIT), TP 1 and 4; 8-bit products and attention: NVIDIA AIConfigurator silicon data (Apache-2.0), H100',
  },
  'blackwell-gddr': {
    constants: {
      gemm_compute: 0.786,
      gemm_compute_narrow: 0.779,
      gemm_memory: 0.803,
      gemm_pad_rows: 87.6,
      gemm_sharpness: 5.08,
      gemm_s: 0.00000747,
      attention_compute: 0.647,
      attention_memory: 0.781,
      elementwise_memory: 0.819,
      ring_s: 0.000026,
      ring_hop_s: 7.09e-7,
      ring_bandwidth: 0.693,
      ring_bandwidth_many: 0.772,
    },
    source:
      "LLMServingSim recorded run of vLLM 0.19 (MIT), first 100 requests; what it does not tell is hopper's",
  },
  'cpu-amx': {
    constants: {
      gemm_compute: 0.115,
      gemm_compute_narrow: 0.6,
      gemm_memory: 0.88,
      gemm_pad_rows: 80.5,
      gemm_sharpness: 3.74,
      gemm_s: 0.000005,
      attention_compute: 0.414,
      attention_memory: 0.561,
      elementwise_memory: 0.7,
      ring_s: 0.000015,
      ring_hop_s: 0.000002,
      ring_bandwidth: 0.6,
      ring_bandwidth_many: 0.75,
    },
    source: 'LLM-Mesh measurements, llama-2-7b and llama-3.1-8b on a 32-core AMX Xeon',
  },
};

export const engineConstants: Readonly<Partial<Record<SimulatedEngine, Fitted<EngineConstants>>>> = {
  vllm: {
    constants: {
      layer_s: 0.0000104,
      step_s: 0.000757,
      sequence_s: 0.00000753,
      prompt_token_s: 6.52e-7,
      prompt_step_s: 0.00499,
      request_s: 0.0105,
      one_shot_s: 0.00000845,
      expert_compute: 0.478,
      expert_memory: 0.976,
      attention_memory: 1,
    },
    source: 'NVIDIA AIConfigurator silicon data (Apache-2.0): vLLM on H100, TP 2 and 8, batches 4, 16, 64',
  },
  'vllm-v0': {
    constants: {
      layer_s: 0.0000177,
      step_s: 0.00413,
      sequence_s: 0.00000666,
      prompt_token_s: 4.79e-7,
      prompt_step_s: 0.004,
      request_s: 0.01,
      one_shot_s: 0.000008,
      expert_compute: 0.6,
      expert_memory: 0.6,
      attention_memory: 1,
    },
    source: 'LLM-Mesh measurements, llama-2-7b and llama-3.1-8b (vLLM 0.x on A100)',
  },
  trtllm: {
    constants: {
      layer_s: 0.00000491,
      step_s: 0.000444,
      sequence_s: 0.0000153,
      prompt_token_s: 0.00000132,
      prompt_step_s: 0.00255,
      request_s: 0.0154,
      one_shot_s: 0.000004,
      expert_compute: 0.478,
      expert_memory: 0.976,
      attention_memory: 0.904,
    },
    source:
      'NVIDIA AIConfigurator silicon data (Apache-2.0): TensorRT-LLM on H200, TP 2 and 8, batches 4, 16, 64',
  },
  openvino: {
    constants: {
      layer_s: 0.000193,
      step_s: 0.005,
      sequence_s: 0.0000136,
      prompt_token_s: 5e-7,
      prompt_step_s: 0.004,
      request_s: 0.01,
      one_shot_s: 0.000008,
      expert_compute: 0.6,
      expert_memory: 0.6,
      attention_memory: 1,
    },
    source: 'LLM-Mesh measurements, llama-2-7b and llama-3.1-8b (OpenVINO)',
  },
};
