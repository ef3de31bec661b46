/**
 * The constants that are fitted to measurements. Shares are of the catalog's peak; times are in seconds.
 */

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

/** Where both were measured together: on CPUs the kernels of engines differ as much as the devices do. */
export interface CpuConstants {
  device: DeviceConstants;
  engine: EngineConstants;
}

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
