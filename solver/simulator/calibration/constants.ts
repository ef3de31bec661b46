/** Written by `node dist/bench/calibrate/main.js`; docs/simulator.md says how. Do not edit by hand. */
// biome-ignore-all lint/suspicious/noApproximativeNumericConstant: measured, and near a constant by chance
import type { DeviceFamily } from '../../catalog/device-spec.ts';
import type { CpuConstants, DeviceConstants, EngineConstants, SimulatedEngine } from '../constants.ts';

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
      attention_compute: 0.544,
      attention_memory: 0.705,
      elementwise_memory: 0.464,
      ring_s: 0.0000444,
      ring_hop_s: 7.77e-7,
      ring_bandwidth: 0.57,
      ring_bandwidth_many: 0.503,
    },
    source:
      'products, small operators and rings: Vidur profiles (github.com/microsoft/vidur, MIT), TP 1 and 4; attention: LLM-Mesh measurements, llama-2-7b and llama-3.1-8b on A100-80GB',
  },
  hopper: {
    constants: {
      gemm_compute: 0.713,
      gemm_compute_narrow: 0.725,
      gemm_memory: 0.942,
      gemm_pad_rows: 87.6,
      gemm_sharpness: 5.08,
      gemm_s: 0.00000747,
      attention_compute: 0.703,
      attention_memory: 0.847,
      elementwise_memory: 0.945,
      ring_s: 0.000026,
      ring_hop_s: 7.09e-7,
      ring_bandwidth: 0.693,
      ring_bandwidth_many: 0.964,
    },
    source:
      'products, small operators and rings: Vidur profiles (github.com/microsoft/vidur, MIT), TP 1 and 4; 8-bit products and attention: NVIDIA AIConfigurator silicon data (Apache-2.0), H100',
  },
  'blackwell-gddr': {
    constants: {
      gemm_compute: 0.78,
      gemm_compute_narrow: 0.725,
      gemm_memory: 0.722,
      gemm_pad_rows: 87.6,
      gemm_sharpness: 5.08,
      gemm_s: 0.00000747,
      attention_compute: 0.703,
      attention_memory: 0.807,
      elementwise_memory: 0.945,
      ring_s: 0.000026,
      ring_hop_s: 7.09e-7,
      ring_bandwidth: 0.693,
      ring_bandwidth_many: 0.964,
    },
    source:
      "LLMServingSim recorded run of vLLM 0.19 (MIT), first 100 requests; what it does not tell is hopper's",
  },
  'cpu-amx': {
    constants: {
      gemm_compute: 0.145,
      gemm_compute_narrow: 0.6,
      gemm_memory: 0.89,
      gemm_pad_rows: 62.6,
      gemm_sharpness: 2.58,
      gemm_s: 0.000005,
      attention_compute: 0.0214,
      attention_memory: 0.553,
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
      layer_s: 0.0000156,
      step_s: 0.000483,
      sequence_s: 0.00000935,
      prompt_token_s: 0.000001,
      prompt_step_s: 0.00125,
      request_s: 0.0153,
      one_shot_s: 0.0000101,
      expert_compute: 0.378,
      expert_memory: 0.973,
      attention_memory: 1,
    },
    source: 'NVIDIA AIConfigurator silicon data (Apache-2.0): vLLM on H100, TP 2 and 8, batches 4, 16, 64',
  },
  'vllm-v0': {
    constants: {
      layer_s: 0.00000303,
      step_s: 0.00444,
      sequence_s: 0.00016,
      prompt_token_s: 4.95e-7,
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
      layer_s: 0.00000684,
      step_s: 0.000425,
      sequence_s: 0.0000366,
      prompt_token_s: 4.69e-8,
      prompt_step_s: 0.000146,
      request_s: 0.0213,
      one_shot_s: 0.00000308,
      expert_compute: 0.378,
      expert_memory: 0.973,
      attention_memory: 0.949,
    },
    source:
      'NVIDIA AIConfigurator silicon data (Apache-2.0): TensorRT-LLM on H200, TP 2 and 8, batches 4, 16, 64',
  },
  openvino: {
    constants: {
      layer_s: 0.000257,
      step_s: 0.005,
      sequence_s: 0.00033,
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

/** Of engines on CPUs without tiles: kernels and the engine's own time were measured together. */
export const cpuConstants: Readonly<Partial<Record<SimulatedEngine, Fitted<CpuConstants>>>> = {
  vllm: {
    constants: {
      device: {
        gemm_compute: 0.798,
        gemm_compute_narrow: 0.6,
        gemm_memory: 0.95,
        gemm_pad_rows: 17.4,
        gemm_sharpness: 3,
        gemm_s: 0.000005,
        attention_compute: 0.45,
        attention_memory: 0.554,
        elementwise_memory: 0.7,
        ring_s: 0.000015,
        ring_hop_s: 0.000002,
        ring_bandwidth: 0.6,
        ring_bandwidth_many: 0.75,
      },
      engine: {
        layer_s: 0.0000212,
        step_s: 0.002,
        sequence_s: 0.000464,
        prompt_token_s: 5e-7,
        prompt_step_s: 0.001,
        request_s: 0.01,
        one_shot_s: 0.000008,
        expert_compute: 0.6,
        expert_memory: 0.6,
        attention_memory: 1,
      },
    },
    source: 'vLLM 0.32 on two cores of an AMD EPYC (Zen 5, AVX-512 BF16, no AMX), shape of Qwen3-0.6B',
  },
  native: {
    constants: {
      device: {
        gemm_compute: 0.8,
        gemm_compute_narrow: 0.6,
        gemm_memory: 0.506,
        gemm_pad_rows: 1.29,
        gemm_sharpness: 3,
        gemm_s: 0.000005,
        attention_compute: 0.45,
        attention_memory: 0.95,
        elementwise_memory: 0.7,
        ring_s: 0.000015,
        ring_hop_s: 0.000002,
        ring_bandwidth: 0.6,
        ring_bandwidth_many: 0.75,
      },
      engine: {
        layer_s: 0.0000316,
        step_s: 0.002,
        sequence_s: 8.1e-8,
        prompt_token_s: 5e-7,
        prompt_step_s: 0.001,
        request_s: 0.01,
        one_shot_s: 0.000008,
        expert_compute: 0.6,
        expert_memory: 0.6,
        attention_memory: 1,
      },
    },
    source:
      'the native engine with its own kernels on two cores of an AMD EPYC (Zen 4, AVX-512 BF16 and VNNI, no AMX), shape of Llama-3.2-1B',
  },
  llamacpp: {
    constants: {
      device: {
        gemm_compute: 0.217,
        gemm_compute_narrow: 0.6,
        gemm_memory: 0.95,
        gemm_pad_rows: 1.01,
        gemm_sharpness: 3,
        gemm_s: 0.000005,
        attention_compute: 0.45,
        attention_memory: 0.289,
        elementwise_memory: 0.7,
        ring_s: 0.000015,
        ring_hop_s: 0.000002,
        ring_bandwidth: 0.6,
        ring_bandwidth_many: 0.75,
      },
      engine: {
        layer_s: 8.29e-7,
        step_s: 0.002,
        sequence_s: 0.0000308,
        prompt_token_s: 5e-7,
        prompt_step_s: 0.001,
        request_s: 0.01,
        one_shot_s: 0.000008,
        expert_compute: 0.6,
        expert_memory: 0.6,
        attention_memory: 1,
      },
    },
    source:
      'the native engine with ggml’s kernels on two cores of an AMD EPYC (Zen 5, AVX-512 BF16, no AMX), shape of Qwen3-0.6B',
  },
};

/** Of engines on CPUs with tiles (AMX), likewise. */
export const amxConstants: Readonly<Partial<Record<SimulatedEngine, Fitted<CpuConstants>>>> = {
  native: {
    constants: {
      device: {
        gemm_compute: 0.114,
        gemm_compute_narrow: 0.6,
        gemm_memory: 0.95,
        gemm_pad_rows: 16,
        gemm_sharpness: 3,
        gemm_s: 0.000005,
        attention_compute: 0.0214,
        attention_memory: 0.553,
        elementwise_memory: 0.7,
        ring_s: 0.000015,
        ring_hop_s: 0.000002,
        ring_bandwidth: 0.6,
        ring_bandwidth_many: 0.75,
      },
      engine: {
        layer_s: 0.00000146,
        step_s: 0.001,
        sequence_s: 0.00001,
        prompt_token_s: 5e-7,
        prompt_step_s: 0,
        request_s: 0.01,
        one_shot_s: 0.000008,
        expert_compute: 0.6,
        expert_memory: 0.6,
        attention_memory: 1,
      },
    },
    source: 'the native engine and libllama on two cores of a Xeon with AMX (26 GB/s), shape of Llama-3.2-1B',
  },
  llamacpp: {
    constants: {
      device: {
        gemm_compute: 0.0414,
        gemm_compute_narrow: 0.6,
        gemm_memory: 0.95,
        gemm_pad_rows: 4.09,
        gemm_sharpness: 3,
        gemm_s: 0.000005,
        attention_compute: 0.0214,
        attention_memory: 0.553,
        elementwise_memory: 0.7,
        ring_s: 0.000015,
        ring_hop_s: 0.000002,
        ring_bandwidth: 0.6,
        ring_bandwidth_many: 0.75,
      },
      engine: {
        layer_s: 0.0000782,
        step_s: 0.001,
        sequence_s: 0.00001,
        prompt_token_s: 5e-7,
        prompt_step_s: 0,
        request_s: 0.01,
        one_shot_s: 0.000008,
        expert_compute: 0.6,
        expert_memory: 0.6,
        attention_memory: 1,
      },
    },
    source: 'the native engine and libllama on two cores of a Xeon with AMX (26 GB/s), shape of Llama-3.2-1B',
  },
};
