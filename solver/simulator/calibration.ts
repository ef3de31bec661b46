/**
 * The constants that stand between a roofline and what devices and engines do. Shares are of the catalog's
 * peak; times are in seconds. They are fitted by `bench/calibrate` and stored in `calibration/constants.ts`.
 */
import type { DeviceFamily } from '../catalog/device-spec.ts';
import { deviceConstants, engineConstants } from './calibration/constants.ts';

/** What belongs to a family of devices, whatever runs on them. */
export interface DeviceConstants {
  /** Share of peak arithmetic that large matrix products reach. Higher: faster prefill. */
  gemm_compute: number;
  /** The same for 8-bit and 4-bit products. */
  gemm_compute_narrow: number;
  /** Share of memory bandwidth that products of few rows reach. Higher: faster decode. */
  gemm_memory: number;
  /** Rows by which a product is padded in effect: tiles, waves. Higher: slower medium batches. */
  gemm_pad_rows: number;
  /** Exponent of the smooth maximum of arithmetic and memory time; infinite is a sharp roofline. */
  gemm_sharpness: number;
  /** Fixed time of one product. */
  gemm_s: number;
  /** Share of peak arithmetic of attention over prompts. */
  attention_compute: number;
  /** Share of memory bandwidth of attention over the KV cache of decoding sequences. */
  attention_memory: number;
  /** Share of memory bandwidth of norms, activations and copies. */
  elementwise_memory: number;
  /** Fixed time of a ring all-reduce, and its growth with each further device. */
  ring_s: number;
  ring_hop_s: number;
  /** Share of the link's bandwidth that a ring reaches with two devices … */
  ring_bandwidth: number;
  /** … and with eight or more (NVLink switches reduce in the network); linear in log2 between. */
  ring_bandwidth_many: number;
}

/** What belongs to an engine, whatever device it runs on. */
export interface EngineConstants {
  /** Time of one layer that is no operator's: launches, small kernels, gaps between them. */
  layer_s: number;
  /** Time of one step on the host that the device waits for: scheduling, sampling, copies. */
  step_s: number;
  /** Its growth with each running sequence. */
  sequence_s: number;
  /** Its growth with each prompt token of the step: mixed batches leave the captured graphs. */
  prompt_token_s: number;
  /** Fixed time of a step that holds prompt tokens, which runs without the full captured graph. */
  prompt_step_s: number;
  /** Time of a request outside the steps, before its first token: HTTP, tokenizer, queues. */
  request_s: number;
  /** Fixed time of the engine's own one-shot all-reduce of small messages; infinite where it has none. */
  one_shot_s: number;
  /** Share of the device's efficiency that grouped products of experts reach, in arithmetic and memory. */
  expert_compute: number;
  expert_memory: number;
  /** Share of the device's attention_memory that this engine's decode attention reaches. */
  attention_memory: number;
}

export interface Calibration {
  device: DeviceConstants;
  engine: EngineConstants;
  /** What the constants were fitted on, or which family's stand in for a family nobody measured. */
  device_source: string;
  engine_source: string;
}

/** A roofline alone: every share 1, nothing fixed, the larger of arithmetic and memory time. */
export const roofline: Calibration = {
  device: {
    gemm_compute: 1,
    gemm_compute_narrow: 1,
    gemm_memory: 1,
    gemm_pad_rows: 0,
    gemm_sharpness: Number.POSITIVE_INFINITY,
    gemm_s: 0,
    attention_compute: 1,
    attention_memory: 1,
    elementwise_memory: 1,
    ring_s: 0,
    ring_hop_s: 0,
    ring_bandwidth: 1,
    ring_bandwidth_many: 1,
  },
  engine: {
    layer_s: 0,
    step_s: 0,
    sequence_s: 0,
    prompt_token_s: 0,
    prompt_step_s: 0,
    request_s: 0,
    one_shot_s: Number.POSITIVE_INFINITY,
    expert_compute: 1,
    expert_memory: 1,
    attention_memory: 1,
  },
  device_source: 'roofline without calibration',
  engine_source: 'roofline without calibration',
};

/** Families without measurements take the constants of the most similar family that has them. */
const standIns: Readonly<Record<DeviceFamily, readonly DeviceFamily[]>> = {
  volta: ['ampere'],
  turing: ['ampere'],
  ampere: [],
  'ampere-gddr': ['blackwell-gddr', 'ampere'],
  ada: ['blackwell-gddr', 'ampere'],
  hopper: [],
  blackwell: ['hopper'],
  'blackwell-gddr': [],
  cdna2: ['ampere'],
  cdna3: ['hopper'],
  cdna4: ['hopper'],
  'cpu-amx': [],
  cpu: ['cpu-amx'],
};

export const simulatedEngines = [
  'vllm',
  'vllm-v0',
  'sglang',
  'trtllm',
  'tgi',
  'llamacpp',
  'native',
  'openvino',
] as const;
export type SimulatedEngine = (typeof simulatedEngines)[number];

const engineStandIns: Readonly<Record<SimulatedEngine, SimulatedEngine>> = {
  vllm: 'vllm',
  'vllm-v0': 'vllm-v0',
  sglang: 'vllm',
  trtllm: 'trtllm',
  tgi: 'vllm-v0',
  llamacpp: 'openvino',
  native: 'openvino',
  openvino: 'openvino',
};

/** The constants for an engine on a family, with their sources; stand-ins say whose they are. */
export function calibrationFor(engine: SimulatedEngine, family: DeviceFamily): Calibration {
  const stands = [family, ...standIns[family]].find((candidate) => deviceConstants[candidate] !== undefined);
  const device = stands === undefined ? undefined : deviceConstants[stands];
  const engineName = engineStandIns[engine];
  const measured = engineConstants[engineName];
  if (device === undefined || measured === undefined)
    throw new Error(`no constants for ${engine} on ${family}: run bench/calibrate`);
  return {
    device: device.constants,
    engine: measured.constants,
    device_source:
      stands === family ? device.source : `${family} is not measured; ${stands}: ${device.source}`,
    engine_source:
      engineName === engine
        ? measured.source
        : `${engine} is not measured; ${engineName}: ${measured.source}`,
  };
}
