/**
 * What a plan gave a unit of a device's memory, in the forms in which engines take it. Pure: the plan and the agent
 * compute the same.
 */
import type { UnitSpec } from './launch.ts';

/** Engines round a share to so many places at least. */
const places = 1000;

function declaredMemory({ device_bytes, share }: NonNullable<UnitSpec['memory']>): number {
  return device_bytes / share;
}

/**
 * Share of the device's memory for all of it, weights and working memory included: `device_bytes / declared bytes`.
 * vLLM's `--gpu-memory-utilization` and TGI's `--cuda-memory-fraction` are that. Undefined where the plan says nothing.
 */
export function shareOfAll({ memory }: UnitSpec): number | undefined {
  return memory === undefined || memory.share <= 0 ? undefined : Math.min(memory.share, 1);
}

/**
 * Share for weights and KV alone: `(weights + KV) / declared bytes`, weights divided over the devices. SGLang's
 * `--mem-fraction-static` is that; activations and graphs lie beside it.
 */
export function shareOfWeightsAndKv(unit: UnitSpec): number | undefined {
  const { memory } = unit;
  if (memory === undefined || memory.share <= 0) return undefined;
  const bytes = weightsOnDevice(unit) + memory.kv_bytes;
  return roundedDown(bytes / declaredMemory(memory));
}

/**
 * Share for KV of what is free once the weights are loaded: `KV / (declared bytes − weights)`. LMDeploy's
 * `--cache-max-entry-count` and TensorRT-LLM's `--kv_cache_free_gpu_memory_fraction` are that.
 */
export function shareOfFree(unit: UnitSpec): number | undefined {
  const { memory } = unit;
  if (memory === undefined || memory.share <= 0) return undefined;
  const free = declaredMemory(memory) - weightsOnDevice(unit);
  return free <= 0 ? undefined : roundedDown(memory.kv_bytes / free);
}

/** KV on each device in whole GiB, at least one: vLLM's VLLM_CPU_KVCACHE_SPACE knows no parts. */
export function kvGibibytes({ memory }: UnitSpec): number | undefined {
  return memory === undefined ? undefined : Math.max(1, Math.floor(memory.kv_bytes / 2 ** 30));
}

function weightsOnDevice({ weight_bytes, tensor, pipeline }: UnitSpec): number {
  return weight_bytes / (tensor * pipeline);
}

/** Never more than was given, and never nothing. */
function roundedDown(share: number): number {
  return Math.max(1 / places, Math.min(1, Math.floor(share * places) / places));
}
