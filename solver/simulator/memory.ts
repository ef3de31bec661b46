/** What of a device's memory remains for the KV cache. */
import type { DeviceSpec } from '../catalog/device-spec.ts';
import {
  attentionLayers,
  kvElementsPerLayer,
  type ModelShape,
  storedWeights_bytes,
} from '../catalog/model-shape.ts';
import { kvHeadsPerDevice } from './operators.ts';

export interface MemoryPlan {
  weight_bytes: number;
  /** Activations of the largest step, logits, and what contexts, graphs and collectives take. */
  reserve_bytes: number;
  kv_bytes_per_token: number;
  /** Tokens that fit at once; 0 or less where the model does not fit. */
  kv_tokens: number;
}

/** CUDA context, captured graphs, NCCL buffers and fragmentation, as vLLM reports them on large GPUs. */
const fixed_reserve_bytes = 2 * 2 ** 30;

/**
 * Of what `utilization` is a share: of all memory, weights and buffers included (vLLM's
 * `gpu_memory_utilization`), or of what these leave, for KV alone (TensorRT-LLM's `free_gpu_memory_fraction`).
 */
export type MemoryShare = 'of all' | 'of free';

/** Per device of a tp × pp group. */
export function planMemory(
  shape: ModelShape,
  device: DeviceSpec,
  group: {
    tp: number;
    pp: number;
    kv_bits: number;
    utilization: number;
    share: MemoryShare;
    max_batched_tokens: number;
    max_sequences: number;
  },
): MemoryPlan {
  const { tp, pp, kv_bits } = group;
  const weight_bytes = storedWeights_bytes(shape) / (tp * pp);
  const width = Math.max(shape.n_ff, (shape.experts?.n_ff ?? 0) * (shape.experts?.used_per_token ?? 0));
  const activations = group.max_batched_tokens * (4 * shape.n_embd + (3 * width) / tp) * 2;
  const logits = Math.min(group.max_sequences, 1024) * shape.n_vocab * 4;
  const reserve_bytes = (device.kind === 'gpu' ? fixed_reserve_bytes : 0) + activations + logits;
  const kvElements =
    shape.latent === undefined ? 2 * kvHeadsPerDevice(shape, tp) * shape.head_dim : kvElementsPerLayer(shape);
  const kv_bytes_per_token = (kvElements * (attentionLayers(shape) / pp) * kv_bits) / 8;
  const free =
    group.share === 'of all'
      ? device.memory_bytes * group.utilization - weight_bytes - reserve_bytes
      : (device.memory_bytes - weight_bytes - reserve_bytes) * group.utilization;
  return {
    weight_bytes,
    reserve_bytes,
    kv_bytes_per_token,
    kv_tokens: Math.floor(free / kv_bytes_per_token),
  };
}
