/**
 * What engines choose where nobody tells them: how many sequences they compute at once, and how many tokens in one
 * step. A plan counts on it until the engine itself has said what it chose.
 */
import { nativeChunk_tokens } from '../../spec/launch.ts';
import type { ResolvedEngine } from '../../spec/plan.ts';
import type { DeviceSpec } from './device-spec.ts';

export interface EngineDefaults {
  /** Sequences that decode together at most; KV memory may end before. */
  max_sequences: number;
  /** Tokens of one step: prompts beyond it are computed in several. */
  batched_tokens: number;
}

const gib = 2 ** 30;

/** Of `max_sequences` and `prefill_chunk_tokens` of model.yaml, for engines to which a number must be told. */
export const nativeDefaults: EngineDefaults = { max_sequences: 16, batched_tokens: nativeChunk_tokens };

/**
 * Of the native engine on devices that multiply hundreds of rows in the time that weights take to them: GPUs, where
 * it is what libllama takes at once (n_ubatch), and AMX, where chunks of 256 have 0.93 of its rate (docs/memory.md).
 * Elsewhere a chunk of it takes seconds, in which nobody else gets a token.
 */
const wideChunk_tokens = 512;

/**
 * Defaults by engine and class of device.
 *
 * - vLLM: `EngineArgs.get_batch_defaults` (vllm/engine/arg_utils.py, 0.10 to 0.32): 1024 sequences and 8192 tokens from
 *   70 GiB on but for A100, else 256 and 2048; on CPUs 128 and 2048 for each process. Older ones have 256.
 * - SGLang: `init_memory_pool` (at least 2048 requests, as far as KV goes) and `_handle_gpu_memory_settings`
 *   (sglang/srt/server_args.py, 0.5): tokens by memory.
 * - LMDeploy: `get_max_batch_size` (lmdeploy/utils.py) by the device's name; `max_prefill_token_num` 8192.
 * - TensorRT-LLM: `trtllm-serve --help` (1.0): 2048 sequences, 8192 tokens.
 * - TGI: 128 requests (`--max-concurrent-requests`), 4096 tokens of prompts.
 * - llama.cpp and Ollama divide their cache among slots, so they are told; their batch is 2048 and 512 tokens.
 *
 * @param devices of the replica: tensor × pipeline
 */
export function engineDefaults(engine: ResolvedEngine, device: DeviceSpec, devices: number): EngineDefaults {
  switch (engine) {
    case 'vllm':
    case 'command':
      return vllmDefaults(device, devices);
    case 'sglang':
      return { max_sequences: 2048, batched_tokens: stepOfSglang(device) };
    case 'lmdeploy':
      return { max_sequences: lmdeploySequences(device), batched_tokens: 8192 };
    case 'tensorrt-llm':
      return { max_sequences: 2048, batched_tokens: 8192 };
    case 'tgi':
      return { max_sequences: 128, batched_tokens: 4096 };
    case 'llama.cpp':
      return { max_sequences: nativeDefaults.max_sequences, batched_tokens: 2048 };
    case 'ollama':
      return { max_sequences: nativeDefaults.max_sequences, batched_tokens: 512 };
    case 'transformers':
      return { max_sequences: nativeDefaults.max_sequences, batched_tokens: 4096 };
    case 'native':
      return nativeOn(device);
  }
}

/** What of an engine's scheduling is on; undefined where nobody knows. */
export interface EngineFeatures {
  /** Prompts that begin alike are computed once. */
  prefix_caching: boolean | undefined;
  /** Long prompts are computed in parts, between which others decode. */
  chunked_prefill: boolean | undefined;
}

/** Unless told otherwise, by their documentation: vLLM 0.8 (V1), SGLang, TensorRT-LLM 1.0, TGI 3, LMDeploy. */
const features: Readonly<Record<ResolvedEngine, EngineFeatures>> = {
  native: { prefix_caching: true, chunked_prefill: true },
  vllm: { prefix_caching: true, chunked_prefill: true },
  sglang: { prefix_caching: true, chunked_prefill: true },
  'llama.cpp': { prefix_caching: true, chunked_prefill: true },
  lmdeploy: { prefix_caching: false, chunked_prefill: true },
  'tensorrt-llm': { prefix_caching: true, chunked_prefill: false },
  tgi: { prefix_caching: true, chunked_prefill: true },
  transformers: { prefix_caching: undefined, chunked_prefill: undefined },
  ollama: { prefix_caching: true, chunked_prefill: true },
  command: { prefix_caching: undefined, chunked_prefill: undefined },
};

/** Words of engine_args that turn one on or off. */
const switches: readonly (readonly [word: string, feature: keyof EngineFeatures, on: boolean])[] = [
  ['--enable-prefix-caching', 'prefix_caching', true],
  ['--no-enable-prefix-caching', 'prefix_caching', false],
  ['--disable-radix-cache', 'prefix_caching', false],
  ['--enable-chunked-prefill', 'chunked_prefill', true],
  ['--no-enable-chunked-prefill', 'chunked_prefill', false],
];

/** What is on where an engine is started with these arguments. */
export function engineFeatures(engine: ResolvedEngine, engine_args: readonly string[]): EngineFeatures {
  const found = { ...features[engine] };
  for (const word of engine_args) {
    const known = switches.find(([name]) => name === word.replaceAll('_', '-'));
    if (known !== undefined) found[known[1]] = known[2];
  }
  return found;
}

function nativeOn({ kind, family }: DeviceSpec): EngineDefaults {
  if (kind === 'cpu' && family !== 'cpu-amx') return nativeDefaults;
  return { ...nativeDefaults, batched_tokens: wideChunk_tokens };
}

function vllmDefaults({ kind, name, memory_bytes }: DeviceSpec, devices: number): EngineDefaults {
  if (kind === 'cpu') return { max_sequences: 128 * devices, batched_tokens: 2048 * devices };
  const large = memory_bytes >= 70 * gib && !/a100/i.test(name);
  return large ? { max_sequences: 1024, batched_tokens: 8192 } : { max_sequences: 256, batched_tokens: 2048 };
}

function stepOfSglang({ kind, memory_bytes }: DeviceSpec): number {
  if (kind === 'cpu') return 4096;
  if (memory_bytes < 35 * gib) return 2048;
  if (memory_bytes < 60 * gib) return 4096;
  return memory_bytes < 160 * gib ? 8192 : 16_384;
}

function lmdeploySequences({ name }: DeviceSpec): number {
  if (/[ah]800|h100|h200|a100|l20y/i.test(name)) return /a[18]00/i.test(name) ? 384 : 1024;
  return 128;
}
